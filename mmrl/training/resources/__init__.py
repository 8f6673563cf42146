"""The machine under an update: micro-batches, rows that may be left out, memory that rests elsewhere."""

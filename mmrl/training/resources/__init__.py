"""The machine under a step: micro-batches, rows that may be left out, memory that rests elsewhere, traces of time."""

"""The machine under a step: micro-batches, the memory they find, traces of time."""

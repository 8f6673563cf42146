"""A process that runs a model's Python and can do nothing else: no file, no network, no other process. Linux on x86-64."""

"""Which samples are scored, how rewards are called, and what is remembered."""

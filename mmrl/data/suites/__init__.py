"""Published test sets: their files as prompts, their scorers, and the numbers that papers report."""

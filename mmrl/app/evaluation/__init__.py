"""`mmrl eval`: held-out prompts, what a model answers to them, and numbers with their uncertainty."""

"""Which prompts next."""

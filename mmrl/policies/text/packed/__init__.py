"""Completions behind their prompts in one row: its layout, attention over it, and which models can read it."""

"""Samplers choose the next prompts."""

"""Shapes for the demos of editing and of clips, drawn and judged."""

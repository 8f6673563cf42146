"""Wan, from words and from a first frame."""

"""Clips: which frames, decoding them, workers, cache. Imports no torch."""

"""Sampling beside training, a fixed number of steps ahead of it."""

"""Spans of time: their units, how models write them, and how predictions are compared with the truth."""

"""Boxes: their spaces, how models write them, and how predictions are compared with the truth."""

"""Sounds that are drawn on the spot, and what is asked of them."""

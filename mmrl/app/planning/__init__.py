"""Counts and bytes for `mmrl plan`."""

"""Scoring samples: how rewards are called, and which answers are cached."""

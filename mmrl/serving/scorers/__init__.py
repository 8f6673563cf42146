"""Models that score pictures and texts, each loaded once per process."""

"""TOML tables and the objects made of them; knows nothing of mmrl but the ranges of numbers."""

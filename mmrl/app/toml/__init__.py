"""TOML tables, keys and values; knows nothing of mmrl."""

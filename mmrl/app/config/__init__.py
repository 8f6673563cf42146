"""From a TOML table to typed settings."""

"""Running one algorithm on one policy. Never sees a concrete policy, a plug-in or a config file."""

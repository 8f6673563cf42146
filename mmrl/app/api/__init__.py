"""Training and evaluation for Python programs and notebooks: the objects of the caller become a config, and one loop runs it."""

"""FLUX.1, FLUX.2 and their editors."""

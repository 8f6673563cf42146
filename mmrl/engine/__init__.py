"""Completions written by an inference server in processes of its own, which holds a copy of the weights."""

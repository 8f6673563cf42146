"""Completions written by an inference server in separate processes, which holds a copy of the weights."""

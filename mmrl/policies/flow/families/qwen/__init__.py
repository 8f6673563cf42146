"""Qwen-Image and its editors."""

"""The command `mmrl`: its words and their help; loads no torch."""

from mmrl.app.cli.program import app, main

__all__ = ["app", "main"]

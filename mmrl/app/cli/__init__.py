"""The command `mmrl`: its arguments, options and help; loads no torch."""

from mmrl.app.cli.program import app, main

__all__ = ["app", "main"]

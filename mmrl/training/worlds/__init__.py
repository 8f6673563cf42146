"""Environments: called as rewards are, inline, in threads, in processes or in the event loop."""

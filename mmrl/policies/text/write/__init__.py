"""Completions written token by token: rows, prefixes, drafts."""

"""Folders with a run's state: written while training goes on, checked, read back."""

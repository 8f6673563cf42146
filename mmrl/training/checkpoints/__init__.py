"""Whole folders of a run's state: written beside training, checked, read back."""

"""The words of an engine over HTTP: JSON out, JSON back."""

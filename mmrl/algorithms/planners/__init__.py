"""Planners choose what a step samples, before and after seeing scores."""

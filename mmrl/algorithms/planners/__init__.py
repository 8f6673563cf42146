"""Planners choose the samples of a step, before and after seeing scores."""

"""Audits of what was sampled, and the causes of other log-probabilities."""

"""Reward models of the user's own: a policy with a scoring head, trained on what people preferred."""

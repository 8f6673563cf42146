"""What to sample, and what to sample again after seeing scores."""

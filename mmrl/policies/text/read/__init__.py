"""Log-probabilities of finished completions under given weights."""

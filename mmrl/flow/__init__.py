"""The mathematics of paths between noise and data: what is sampled, how, and what of it trains."""

"""The mathematics of paths between noise and data: what is sampled, how, and which part of it trains."""

"""Other machines: what is fetched, whether the network may be asked, loops, and secrets that no log shows."""

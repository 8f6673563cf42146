"""The steps of a run: each sampled when it is due, or beside training, a fixed number of steps ahead of it."""

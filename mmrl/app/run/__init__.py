"""Config -> objects -> a run folder."""

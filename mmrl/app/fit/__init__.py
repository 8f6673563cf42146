"""Plans of runs, and the sizes with which a run fits its card."""

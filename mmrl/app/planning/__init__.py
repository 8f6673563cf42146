"""Plans of runs: calls and bytes counted without weights, and the sizes with which a run fits its card."""

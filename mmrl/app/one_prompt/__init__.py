"""`mmrl draw` and `mmrl ask`: one prompt of the user's own, answered by the weights of a run."""

"""`mmrl arena`: methods against each other from one checkpoint, each with the same compute, over several seeds."""

"""From a prompt to the tensors that condition a generator."""

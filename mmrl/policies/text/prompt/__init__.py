"""From a prompt to the tensors that a model reads: templates, text, pictures, clips."""

"""The tools of any program, without a word of RL: cache, workers, loops, state of a process, spans, tensors, files of weights."""

"""What any program needs and knows nothing of RL: cache, workers, loops, state of a process, spans, files of weights."""

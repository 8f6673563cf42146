"""Models and programs that judge answers: VLM judges, pairs, verdicts, a grader of mathematics."""

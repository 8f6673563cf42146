"""Answers as models write them: boxes, spans of time, letters, numbers and words, and how near they are to the truth."""

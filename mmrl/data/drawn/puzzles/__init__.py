"""Puzzles on pictures, solved turn by turn: one idea a file."""

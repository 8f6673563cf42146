"""Puzzles on pictures, solved turn by turn: a class for each kind."""

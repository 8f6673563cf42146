"""Scores -> Scores, before advantages: bonuses, penalties, gates."""

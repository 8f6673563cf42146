"""Tools for a model to look again at its pictures and clips while it answers: functions, without a protocol of turns."""

"""Environments written for other libraries, as worlds of mmrl: one library per file, none imported before it is asked for."""

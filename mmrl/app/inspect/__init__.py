"""Settings, methods, families and shipped things, printed."""

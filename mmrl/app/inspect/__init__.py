"""What is known of settings, methods, families and shipped things, printed."""

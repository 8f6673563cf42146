"""A page on this machine that follows a run while it trains: it reads the run's files, and its buttons leave requests there."""

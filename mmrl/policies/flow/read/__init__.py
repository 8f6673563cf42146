"""Log-densities of finished samples under given weights."""

"""`mmrl compare`: two runs or evaluations side by side."""

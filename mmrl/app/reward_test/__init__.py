"""`mmrl reward test`: probes, rows and the verdict."""

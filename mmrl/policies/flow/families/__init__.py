"""One small file per kind of image generator."""

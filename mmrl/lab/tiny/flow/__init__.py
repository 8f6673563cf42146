"""Small image, clip and editing pipelines of the real classes."""

"""Pictures and clips on their way into a model: features that are kept."""

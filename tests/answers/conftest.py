"""Property tests run on shared cores, for one change as for another: no deadline per example, and the same examples."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None, derandomize=True)
settings.load_profile("no deadline")

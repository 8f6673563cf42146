"""Published recipes with their measure: what they are, what is measured, and small models that go the same way."""

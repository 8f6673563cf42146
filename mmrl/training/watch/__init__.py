"""Everything that watches a run: ratio gate, health, alarm."""

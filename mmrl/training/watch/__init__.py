"""Everything that watches a run: ratio gate, preflight, health, alarm, diversity."""

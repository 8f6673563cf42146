"""Chains of stages: rows that one stage writes and a later one trains on."""

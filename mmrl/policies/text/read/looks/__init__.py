"""Quantities of a reading that take a forward of their own."""

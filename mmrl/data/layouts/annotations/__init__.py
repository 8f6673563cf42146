"""Boxes that people drew, as annotation tools, tables and the hub write them."""

"""Readers, checks, conversion and splits of data sets, shared by the files in datasets/."""

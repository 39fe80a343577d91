"""Saved results: records, files, significance tests and tables."""

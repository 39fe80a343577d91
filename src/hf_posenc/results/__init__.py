"""Saved results -> comparisons and tables."""

"""Saved results, encodings and models -> figures, all in one style."""

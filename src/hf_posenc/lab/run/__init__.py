"""Runs the systems of a config in a run folder: prepare, train, translate, score, diagnose."""

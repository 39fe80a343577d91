"""Trained models for other engines than torch."""

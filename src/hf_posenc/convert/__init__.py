"""Trained models converted: to other encodings, and from and to transformers' translation models."""

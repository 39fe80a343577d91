"""Trained models converted: to other encodings, and from and to MarianMT."""

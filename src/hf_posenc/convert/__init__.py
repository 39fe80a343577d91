"""Trained models loaded without their code, and converted: to other encodings, from and to those of transformers."""

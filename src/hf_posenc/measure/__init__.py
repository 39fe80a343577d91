"""The length that a language model can use: measurements of any model of transformers, and their report."""

"""Translation of whole documents by any translation model."""

"""Algorithmic tasks on which length generalization is measured, with exact answers at every length."""

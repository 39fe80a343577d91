"""Seq2SeqTrainer, taught to train by length, on one process or many, and to go on where it was stopped."""

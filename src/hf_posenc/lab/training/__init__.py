"""Training: a Seq2SeqTrainer with batches by length, exact resumption, several GPUs and nodes."""

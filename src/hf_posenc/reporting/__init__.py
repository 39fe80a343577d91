"""What others see of a finished run: its report, the model cards, and repositories on the Hub."""

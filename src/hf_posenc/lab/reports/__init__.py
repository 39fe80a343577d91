"""Reports, model cards and repositories on the Hub of finished runs."""

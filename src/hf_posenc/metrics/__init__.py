"""The project's own `evaluate` metrics, each in a folder that `evaluate.load` takes as it is."""

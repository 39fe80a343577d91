"""Config files: YAML to validated settings of an experiment."""

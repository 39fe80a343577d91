"""A config file -> checked settings of an experiment."""

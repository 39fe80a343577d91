"""The systems of a config file -> a run folder: prepared, trained, translated, scored and looked into."""

"""Atomic and compressed files, checksums, names of files, worker processes, loading by Auto classes."""

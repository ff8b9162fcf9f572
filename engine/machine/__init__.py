"""This machine: cores, memory, page cache, noise of other programs, fingerprint, and measured limits."""

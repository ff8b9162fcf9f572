"""Fuzzing of every parser of foreign input."""

"""Comparison of answers: one prompt, several variants that answer it, and their answers side by side."""

"""Benchmarks: what is measured, how, and what it says."""

"""Benchmarks: planning, measurement, analysis of results, baselines, and import/export."""

"""Baselines: other ways of running the same model, measured side by side with our own pool."""

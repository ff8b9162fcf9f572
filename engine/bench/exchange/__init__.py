"""Runs of other programs in, and runs out for them."""

"""Simulations that print how often verdicts are wrong, and how often they find what is there."""

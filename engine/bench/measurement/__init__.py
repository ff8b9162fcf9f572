"""Measurement of one configuration: its workers, its requests, its metrics, and the machine's noise meanwhile."""

"""Execution of a plan, turn by turn: the schedule's rounds, the search for settings, progress."""

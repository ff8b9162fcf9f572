"""Turn after turn, until the plan is done: the schedule's rounds, the search for settings, progress."""

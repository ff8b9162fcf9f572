"""The command line behind `python -m engine`: the words of each command, and what it does."""

"""Command line behind `python -m engine`: argument parsing and implementation of each command."""

"""What a check says where something does not hold."""

MOST_S = 10.0
"""What takes longer than this counts as a hang."""


class Failure(Exception):
    """The workbench did what it must not do after a fault; the text says where and what."""

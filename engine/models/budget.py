"""Read budget of one model, over all its files: limits that no real model reaches and that stop a crafted one."""

LIMITS = {
    "keys": 1 << 14,
    "strings in arrays": 1 << 21,
    "numbers in short arrays": 1 << 18,
    "bytes of text": 1 << 22,
    "tensors": 1 << 15,
}
"""Limits by item counted. Together they keep a read under a second and 20 MB; vocabularies have up to 262,144 tokens,
with two or three strings each."""


class Budget:
    """Counter of what was read, checked against LIMITS."""

    def __init__(self) -> None:
        self._spent = dict.fromkeys(LIMITS, 0)

    def spend(self, what: str, count: int) -> bool:
        """Count `count` more of `what`; return False where that exceeds its limit."""
        self._spent[what] += count
        return self._spent[what] <= LIMITS[what]

"""What may be read for one model, over all its files: bounds that no real model reaches and a crafted one must."""

LIMITS = {
    "keys": 1 << 14,
    "strings in arrays": 1 << 21,
    "numbers in short arrays": 1 << 18,
    "bytes of text": 1 << 22,
    "tensors": 1 << 15,
}
"""By what is counted. Together they keep a read under a second and 20 MB; vocabularies have up to 262,144 tokens, and
two or three strings for each."""


class Budget:
    """Counts what was read."""

    def __init__(self) -> None:
        self._spent = dict.fromkeys(LIMITS, 0)

    def spend(self, what: str, count: int) -> bool:
        """Count more of it; False where that is too much."""
        self._spent[what] += count
        return self._spent[what] <= LIMITS[what]

"""Size class of a model: what speeds may be compared with each other, by the number of parameters."""

import re

_CLASSES = ((0.1, "up to 0.1 B"), (0.5, "0.1 to 0.5 B"), (2, "0.5 to 2 B"), (5, "2 to 5 B"), (10, "5 to 10 B"),
            (20, "10 to 20 B"), (50, "20 to 50 B"))  # fmt: skip
"""Classes by their end, in billions of parameters."""

LARGEST, UNKNOWN = "50 B and more", "unknown size"
SIZE_CLASSES = (*(label for _, label in _CLASSES), LARGEST, UNKNOWN)
"""All classes, the smallest first."""

LONGEST_NAME = 300
_PARAMETERS = re.compile(r"(?i)(?<![a-z0-9.])(?:(\d{1,3})x)?(\d{1,4}(?:\.\d{1,3})?) ?([bm])(?![a-z0-9])")
_UNITS = {"b": 1e9, "m": 1e6}


def size_class(num_parameters: float | None) -> str:
    """Return the class of a model with so many parameters, None where the number is unknown."""
    if not num_parameters:
        return UNKNOWN
    return next((label for end, label in _CLASSES if num_parameters < end * 1e9), LARGEST)


def parameters_in(name: str) -> float | None:
    """Return the number of parameters in a model's name, such as 7e9 in mistral-7b-Q4_K_M; None where it has none.

    Of a mixture such as 8x7B it is the product, an upper bound. Names are read up to 300 characters.
    """
    found = _PARAMETERS.search(name[:LONGEST_NAME])
    if found is None:
        return None
    return int(found[1] or 1) * float(found[2]) * _UNITS[found[3].lower()]

"""Twenty drawn inputs for every parser of foreign input; `python -m tests.fuzz` gives more of the same."""

import pytest

from tests.fuzz.parsers import PARSERS
from tests.fuzz.running import tried

NUM = 20


@pytest.mark.parametrize("name", PARSERS)
def test_only_our_own_errors_come_of_foreign_input(name: str) -> None:
    failures = [failure for number in range(NUM) if (failure := tried(name, 1, number))]
    assert not failures


@pytest.mark.parametrize("name", PARSERS)
def test_valid_input_is_read(name: str) -> None:
    for content in PARSERS[name].seeds():
        PARSERS[name].parse(content)

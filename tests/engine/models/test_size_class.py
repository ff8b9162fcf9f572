"""Size classes: what models may be compared with each other."""

import pytest

from engine.models.size_class import SIZE_CLASSES, parameters_in, size_class


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("mistral-7b-Q4_K_M", 7e9),
        ("Mistral-7B-Instruct-v0.2", 7e9),
        ("qwen2.5-0.5b-Q8_0", 0.5e9),
        ("SmolLM2-135M-Instruct", 135e6),
        ("Llama 3.1 8B", 8e9),
        ("Mixtral-8x7B-v0.1", 56e9),
        ("story-7m", 7e6),
        ("story", None),
        ("a7b", None),
        ("Q4_K_M", None),
        ("7bits", None),
        ("x" * 400 + "-7b", None),
        ("", None),
    ],
)
def test_the_size_in_a_name(name: str, number: float | None) -> None:
    assert parameters_in(name) == number


def test_every_number_has_one_class_and_larger_models_no_smaller_one() -> None:
    numbers = [7.9e6, 99e6, 135e6, 0.5e9, 1.1e9, 3e9, 7.2e9, 13e9, 32e9, 70e9, 1e12]
    places = [SIZE_CLASSES.index(size_class(number)) for number in numbers]
    assert places == sorted(places)
    assert size_class(7.9e6) != size_class(7.2e9) == "5 to 10 B"
    assert size_class(None) == size_class(0) == "unknown size"

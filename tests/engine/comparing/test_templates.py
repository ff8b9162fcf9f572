"""Prompts with variables: every value is inserted unchanged, and every missing one is named."""

import pytest

from engine.comparing.templates import render, variables
from engine.errors import ConfigError


def test_values_stand_where_their_variables_stood() -> None:
    assert render("{{who}} met {{ whom }} and {{who}}", {"who": "Anna", "whom": "Bob"}) == "Anna met Bob and Anna"


def test_a_value_is_never_read_as_a_template() -> None:
    values = {"a": "{{b}}", "b": "\\1 \\g<0> $x"}
    assert render("{{a}}{{b}}", values) == "{{b}}\\1 \\g<0> $x"


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"\{\{town\}\}.*Set 'town' in the table"):
        render("From {{town}}", {"city": "Paris"})


@pytest.mark.parametrize("text", ["{x}", "{{}}", "{{1x}}", "{{a b}}", "{{a|upper}}", "{{{", "{{a\n}}", "{{ a", "}}{{"])
def test_other_braces_are_text(text: str) -> None:
    assert variables(text) == ()
    assert render(text, {}) == text


def test_variables_come_once_in_order_in_any_script() -> None:
    assert variables("{{b}} {{ a }} {{b}} {{größe}}") == ("b", "a", "größe")

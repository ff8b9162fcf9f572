"""Names of nodes: what one means to a connection that calls its nodes otherwise than the one that gave it."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.naming import node_called, with_id, without_id
from engine.errors import ConfigError


class Node(NamedTuple):
    """A node of a connection."""

    id: str
    name: str
    given_name: str


FIRST, SECOND = "1" * 8, "2" * 8


@given(name=st.text(), id=st.uuids())
def test_a_name_with_an_id_has_both(name: str, id: object) -> None:
    digits = str(id).replace("-", "")
    expected = (name, digits[:6]) if name else (with_id(name, digits), "")
    assert without_id(with_id(name, digits)) == expected


@given(name=st.text(alphabet="b ()0123456789abcdefg"))
def test_what_is_no_id_stays_in_the_name(name: str) -> None:
    before, digits = without_id(name)
    assert (with_id(before, digits) if digits else before) == name


def test_a_node_is_found_by_what_another_connection_called_it() -> None:
    alone, first, second = (
        Node(FIRST, "b", "b"), Node(FIRST, "b (111111)", "b"), Node(SECOND, "b (222222)", "b"),
    )  # fmt: skip
    assert node_called([alone], "b (111111)") == alone
    assert node_called([first], "b") == first
    assert node_called([first, second], "b (222222)") == second
    kept = Node(FIRST, "b", "b")  # it had the name before the other one came
    assert node_called([second, kept], "b") == kept
    with pytest.raises(ConfigError, match=r"2 nodes are named 'b': give one of b \(111111\), b \(222222\)"):
        node_called([first, second], "b")
    for nodes, usable in (([first], r"b \(111111\)"), ([], "none")):
        with pytest.raises(ConfigError, match=f"node 'c': is not one that can be used; these can: {usable}"):
            node_called(nodes, "c")

"""Which node measured a run: clusters whose nodes share names, are started again, leave and come."""

from dataclasses import dataclass, replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.naming import with_id
from engine.over_nodes.node_of_run import node_of
from engine.protocol import NodeInfo
from engine.runs import RunRecord
from tests.engine.history.run_maker import make_run


@dataclass(frozen=True)
class Machine:
    """A machine of a cluster; id: in Ray, another one after each start."""

    address: str
    name: str
    id: str


@dataclass(frozen=True)
class Change:
    """What happened since a run to one of the machines: it has left, or Ray was started again there."""

    has_left: bool
    new_id: str


names = st.sampled_from(["b", "c", "b (0123ab)", "10.0.0.3"])
ids = st.uuids().map(lambda number: number.hex)
machines = st.lists(names, min_size=1, max_size=5).flatmap(
    lambda names: st.lists(ids, min_size=len(names), max_size=len(names), unique=True).map(
        lambda ids: [Machine(f"10.0.0.{at}", *pair) for at, pair in enumerate(zip(names, ids, strict=True))]
    )
)
changes = st.builds(Change, st.booleans(), st.just("") | ids)


def connected(machines: list[Machine]) -> list[NodeInfo]:
    """The nodes as a connection calls them."""
    given = [one.name for one in machines]
    shown = {one.id: with_id(one.name, one.id) if given.count(one.name) > 1 else one.name for one in machines}
    return [
        NodeInfo(shown[one.id], one.address, 1, 1, 1, "", {}, 0, "", id=one.id, given_name=one.name) for one in machines
    ]


def measured(node: NodeInfo, *, is_by_this_version: bool = True) -> RunRecord:
    known = {"name": node.given_name, "id": node.id, "address": node.address}
    return make_run(0, origin=f"node {node.name}", machine={"node": known} if is_by_this_version else {})


@given(before=machines, happened=st.lists(changes, min_size=5, max_size=5), came=machines, at=st.integers(0, 4))
def test_the_machine_that_measured_is_found_and_no_other_is_taken_for_it(
    before: list[Machine], happened: list[Change], came: list[Machine], at: int
) -> None:
    own = before[at % len(before)]
    node = connected(before)[at % len(before)]
    now = [
        replace(one, id=change.new_id or one.id)
        for one, change in zip(before, happened, strict=False)
        if not change.has_left
    ] + [replace(one, address=f"10.0.1.{number}") for number, one in enumerate(came)]
    nodes = connected(now)
    found, reason = node_of(measured(node), nodes)
    same = [one for one in nodes if one.given_name == own.name]
    if own.address in [one.address for one in nodes]:
        assert found is not None and found.address == own.address
    elif node.name != own.name or len(same) != 1:
        assert found is None and reason
    else:
        assert found == same[0]  # its address may have changed
    assert (found is None) == bool(reason)


@given(before=machines, came=machines, at=st.integers(0, 4), has_left=st.booleans())
def test_a_run_of_an_earlier_version_is_found_by_its_name_or_digits_where_these_leave_one(
    before: list[Machine], came: list[Machine], at: int, has_left: bool
) -> None:
    number = at % len(before)
    own, node = before[number], connected(before)[number]
    now = (before[:number] + before[number + 1 :] if has_left else before) + came
    nodes = connected(now)
    found, reason = node_of(measured(node, is_by_this_version=False), nodes)
    if not has_left and node.name == with_id(own.name, own.id):
        assert found is not None and found.id == own.id
    elif found is None:
        assert reason
        assert len([one for one in nodes if one.given_name == own.name]) != 1 or "several" in reason
    else:
        assert found.given_name in (own.name, "b")


def test_what_a_person_reads_names_the_nodes() -> None:
    first, second = (Machine(f"10.0.0.{at}", "b", UUID(int=at << 120).hex) for at in (1, 2))
    run = measured(connected([first])[0], is_by_this_version=False)
    assert node_of(run, connected([first])).node
    assert node_of(run, connected([first, second])).reason == (
        "several nodes are or were named b, and which of them measured this run is not known; there are now "
        "b (010000) at 10.0.0.1, b (020000) at 10.0.0.2"
    )
    other = Machine("10.0.0.3", "b", UUID(int=3 << 120).hex)
    alone = node_of(measured(connected([first, second])[0]), connected([other]))
    assert alone.reason.endswith("is not known; there is now b at 10.0.0.3")
    assert node_of(run, connected([replace(first, name="c")])).reason == "the cluster has no node b now"

"""Facts of this machine: speed, what limits it, the largest model that fits, users, settings; measured or estimated."""

import math
from typing import Literal, NamedTuple

from engine.bench.planning.layout import parse_layout
from engine.history import History
from engine.history.activity import TrialSpeed
from engine.history.filters import Filter
from engine.machine.memory import available_memory
from engine.models.catalogue import READABLE_PER_S, read_catalogue
from engine.runs import RunRecord
from engine.units import counted, quantity
from engine.workbench.machine_card import MachineCard, own_machine

Name = Literal["speed", "limit", "largest", "users", "settings"]
Provenance = Literal["measured", "measured, disturbed", "estimated", "not measured"]
"""Disturbed: other programs used the processors during most of the samples, so that a quiet machine does better."""

CONTEXT = 4096
"""Tokens of context with which a model of the catalogue must fit."""

MOST_SEARCHES = 20
"""Latest searches for settings among which one of this machine is looked for."""

UNKNOWN = "–"
_ANY_MEMORY = 1 << 62


class Fact(NamedTuple):
    """Answer to one question about this machine.

    value: the answer in a few words; a dash where provenance is "not measured". note: its basis, in a sentence or two.
    run_id: the run that has its samples, empty without one.
    """

    name: Name
    label: str
    value: str
    provenance: Provenance
    note: str
    run_id: str = ""


def facts_of(
    card: MachineCard | None, search: RunRecord | None = None, speed: TrialSpeed | None = None
) -> tuple[Fact, ...]:
    """Return the facts, one for each Name in its order.

    card: of this machine and the model in question. search: a run of the question "settings", see `newest_search`.
    speed: of the model's trials, which stands for a speed that was not measured.
    """
    return _speed(card, speed), _limit(card), _largest(card), _users(card), _settings(card, search)


def newest_search(history: History, model: str) -> RunRecord | None:
    """Return the latest finished search for the settings of a model on this machine; None where there is none.

    model: name of its file without the ending. Raises HistoryError.
    """
    wanted = Filter(models=(model,), questions=("settings",), statuses=("done",), origins=("measured",))
    rows = history.find.runs(wanted, limit=MOST_SEARCHES).rows
    here = own_machine()
    found = next((str(row["id"]) for row in rows if row["machine"] == here), None)
    return history.runs.run(found) if found is not None else None


def _speed(card: MachineCard | None, speed: TrialSpeed | None) -> Fact:
    label = "Speed, one user"
    if card is not None:
        rest = [f"Prompts at {quantity(card.prefill_per_s, 'tok/s')}"] if card.prefill_per_s else []
        rest += [f"first token after {quantity(card.ttft_s, 's')}"] if card.ttft_s else []
        note = f"{', '.join(rest)}." if rest else ""
        return Fact("speed", label, quantity(card.decode_per_s, "tok/s"), _measured(card), note, card.run_id)
    if speed is not None:
        basis = (
            f"Median of {counted(speed.num_trials, 'trial')} of the last 7 days; other work may have run beside them."
        )
        return Fact("speed", label, quantity(speed.per_s, "tok/s"), "estimated", basis)
    return _unknown("speed", label, "Generated tokens per second with the loaded model.")


def _limit(card: MachineCard | None) -> Fact:
    label = "What limits it"
    if card is None:
        return _unknown("limit", label, "Memory bandwidth or compute: which of them a faster machine would need.")
    if card.limit == "unknown":
        return _unknown("limit", label, card.limit_sentence)
    value = "Memory bandwidth" if card.limit == "memory bandwidth" else "Compute"
    return Fact("limit", label, value, _measured(card), card.limit_sentence, card.run_id)


def _largest(card: MachineCard | None) -> Fact:
    label, free, catalogue = "Largest model that fits", available_memory(), read_catalogue()
    bandwidth = card.bandwidth_bytes_per_s if card is not None else math.nan
    found, readable = catalogue.picks(free, bandwidth, CONTEXT)
    if found is None:
        least = min(entry.needed_bytes(CONTEXT) for entry in catalogue.entries if entry.kind == "text")
        note = f"The smallest of the catalogue needs {quantity(least, 'B')}; {quantity(free, 'B')} is free."
        return Fact("largest", label, "None of the catalogue", "estimated", note)
    needs = f"Needs {quantity(found.needed_bytes(CONTEXT), 'B')} of {quantity(free, 'B')} free, with {CONTEXT:,} tokens"
    speed = f", at most {quantity(found.tokens_per_s(bandwidth), 'tok/s')}" if card is not None else ""
    most = " It is the largest of the catalogue." if found is catalogue.picks(_ANY_MEMORY).largest else ""
    faster = ""
    if readable is not None and readable is not found:
        reaches = quantity(readable.tokens_per_s(bandwidth), "tok/s")
        faster = (
            f" The largest that may reach {READABLE_PER_S:g} tok/s: {readable.title} {readable.quantisation}, "
            f"at most {reaches}."
        )
    return Fact("largest", label, f"{found.title} {found.quantisation}", "estimated", f"{needs}{speed}.{most}{faster}")


def _users(card: MachineCard | None) -> Fact:
    label = "Users at once"
    if card is None:
        return _unknown("users", label, "People that it serves at the same time without a long wait.")
    value = f"{card.users:,} or more" if card.is_at_least else f"{card.users:,}"
    return Fact("users", label, value, _measured(card), card.users_sentence, card.run_id)


def _settings(card: MachineCard | None, search: RunRecord | None) -> Fact:
    label = "Best settings"
    if search is not None:
        winner = search.outcome.get("winner")
        name = next((cell.label for cell in search.cells if cell.number == winner), UNKNOWN)
        is_proven = search.outcome.get("word") != "not enough data"
        note = str(search.outcome.get("sentence", ""))
        return Fact("settings", label, name, "measured" if is_proven else "estimated", note, search.id)
    if card is not None and card.best is not None:
        best = card.best
        layout = parse_layout(best.layout)
        value = f"{layout.instances} × {counted(int(layout.threads), 'thread')}"
        note = (
            f"The faster of {best.num_tried} divisions of the cores: {quantity(best.per_s, 'tok/s')} in all with "
            f"{counted(best.num_users, 'user')}. Two rounds give no verdict."
        )
        return Fact("settings", label, value, "estimated", note, card.run_id)
    return _unknown("settings", label, "Processes, threads and batch sizes that run this model fastest.")


def _measured(card: MachineCard) -> Provenance:
    return "measured, disturbed" if card.is_mostly_disturbed else "measured"


def _unknown(name: Name, label: str, note: str) -> Fact:
    return Fact(name, label, UNKNOWN, "not measured", note)

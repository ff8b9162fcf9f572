"""Machine card: the figures of one short run of one model, with their conditions, and the file that keeps the cards."""

import math
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from engine.bench.analysis.capacity import capacity
from engine.bench.analysis.disturbance import disturbance_of
from engine.bench.analysis.entries import llama_of, llama_version
from engine.bench.analysis.roofline import NEAR_LIMIT, Roofline, shares
from engine.bench.analysis.rounds import Rounds
from engine.bench.analysis.summary import CellSummary, medians_of
from engine.bench.planning.candidates import planned_cells
from engine.bench.planning.plan import Cell, Plan
from engine.errors import ConfigError
from engine.files import decoded_json, read_regular, write_private
from engine.machine.fingerprint import hardware
from engine.machine.limits import Limits
from engine.models import ModelFile
from engine.models.details import readable
from engine.runs import RunRecord, machine_label
from engine.samples import is_counted
from engine.units import counted

FILE = "machine-cards.json"
MOST_CARDS, MOST_BYTES = 32, 1 << 20

Limit = Literal["memory bandwidth", "compute", "cached", "unknown"]
"""What limits the decode speed; cached: compute, as the weights fit in the cache and are not read from memory."""

Text = Annotated[str, msgspec.Meta(max_length=2_000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Real = Annotated[float, msgspec.Meta(gt=0, le=1e18)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Division of the cores that was the fastest of `num_tried`, and its tokens per second with `num_users` in all."""

    layout: Text
    per_s: Real
    num_users: Count
    num_tried: Count


class MachineCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Card of one model on one machine. Speeds are of one user, in tokens per second; None where not measured.

    run_id: the run that has the samples. model, model_hash: its name and the hash of its file; num_parameters: its
    size. threads, n_ctx: of the configuration with one user. num_prompt, num_generated: tokens of each request.
    num_samples: those that count. llama: version and commit. disturbed: how other programs disturbed the samples, empty
    where they did not; is_mostly_disturbed: more than half of them. bandwidth_bytes_per_s: memory bandwidth of all
    cores. users: most users served within the objective that `users_sentence` states; is_at_least: no larger number was
    measured.
    """

    run_id: Text
    measured_at: datetime
    machine: Text
    memory_bytes: Count
    model: Text
    model_hash: Text
    quantisation: Text
    num_parameters: Count
    threads: Count
    n_ctx: Count
    num_prompt: Count
    num_generated: Count
    num_samples: Count
    llama: Text
    disturbed: Text
    is_mostly_disturbed: bool
    decode_per_s: Real
    prefill_per_s: Real | None
    ttft_s: Real | None
    limit: Limit
    limit_sentence: Text
    bandwidth_bytes_per_s: Real
    users: Count
    is_at_least: bool
    users_sentence: Text
    best: Settings | None

    @property
    def title(self) -> str:
        """The model with its quantisation."""
        return f"{self.model} {self.quantisation}".strip()

    @property
    def conditions(self) -> str:
        """The conditions of its figures besides the model, in one line."""
        at = self.measured_at
        parts = (
            self.machine,
            counted(self.threads, "thread"),
            f"context {self.n_ctx:,}",
            f"{self.num_prompt:,} prompt and {self.num_generated:,} generated tokens",
            counted(self.num_samples, "sample"),
            f"llama.cpp {self.llama}",
            f"{at.day} {at:%B %Y, %H:%M} UTC",
            "quiet machine" if not self.disturbed else "disturbed" if self.is_mostly_disturbed else "partly disturbed",
        )
        return " · ".join(parts)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cards: Annotated[list[MachineCard], msgspec.Meta(max_length=MOST_CARDS)]
    version: Literal[1] = 1


def card_of(run: RunRecord, model: ModelFile, model_hash: str, limits: Limits) -> MachineCard:
    """Return the card of a run of `minute_plan`, finished or stopped.

    Raises ConfigError where its first configuration, which has one user, has no sample.
    """
    rounds = Rounds.of(run.samples)
    cells = medians_of(run, rounds)
    planned = planned_cells(Plan.from_dict(run.plan))[0]
    alone = cells[0]
    if "decode_per_s" not in alone.metrics or not isinstance(planned, Cell):
        reason = next((cell.reason for cell in run.cells if cell.reason), "no sample was finished")
        raise ConfigError(f"The speed of {readable(model.name)} was not measured: {reason}.")
    found = shares(
        planned, model, limits,
        tokens_per_s=_value(alone, "tokens_per_s"), prefill_per_s=_value(alone, "prefill_per_s"),
    )  # fmt: skip
    served, disturbance = capacity(run), disturbance_of(run, rounds.samples)
    return MachineCard(
        run_id=run.id,
        measured_at=run.created_at,
        machine=machine_label(run.machine),
        memory_bytes=int(run.machine.get("memory_bytes") or 0),
        model=readable(model.name),
        model_hash=model_hash,
        quantisation=model.quantisation,
        num_parameters=model.num_parameters,
        threads=planned.pool.threads or 1,
        n_ctx=planned.pool.n_ctx,
        num_prompt=planned.workload.num_prompt,
        num_generated=planned.workload.num_generated,
        num_samples=int(is_counted(run.samples).sum()),
        llama=_llama(run),
        disturbed=disturbance.sentence,
        is_mostly_disturbed=disturbance.is_mostly,
        decode_per_s=_value(alone, "decode_per_s"),
        prefill_per_s=_known(_value(alone, "prefill_per_s")),
        ttft_s=_known(_value(alone, "ttft_s")),
        limit=_limit(found),
        limit_sentence=found.says,
        bandwidth_bytes_per_s=limits.bandwidth_bytes_per_s,
        users=served.users,
        is_at_least=served.is_at_least,
        users_sentence=served.sentence,
        best=_best(cells),
    )  # fmt: skip


def own_machine() -> str:
    """Return the label of this machine, as on its cards."""
    return machine_label(hardware())


def read_cards(home: Path) -> list[MachineCard]:
    """Return the kept cards, the latest first; none where the file is missing.

    Raises ConfigError where it cannot be read.
    """
    path = home / FILE
    try:
        return decoded_json(read_regular(path, MOST_BYTES), _File).cards
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The cards of this machine in {path} cannot be read ({error}). Move the file away, or measure again, "
            "which replaces it."
        ) from error


def with_card(cards: Iterable[MachineCard], card: MachineCard) -> list[MachineCard]:
    """Return the cards with a new one in the place of the former one of its model and machine, the latest first."""
    replaced = (card.model_hash, card.machine)
    return [card, *(one for one in cards if (one.model_hash, one.machine) != replaced)][:MOST_CARDS]


def write_cards(home: Path, cards: list[MachineCard]) -> None:
    """Keep the cards for `read_cards`. Raises ConfigError where the file cannot be written."""
    try:
        write_private(home / FILE, msgspec.json.encode(_File(cards)))
    except OSError as error:
        raise ConfigError(
            f"The card cannot be saved in {home / FILE}: {error}. It is shown until the workbench closes: copy it, or "
            "free some space and measure again."
        ) from error


def _llama(run: RunRecord) -> str:
    """Return version and commit of llama.cpp, as far as the run has them."""
    commit = str(llama_of(run.machine).get("commit", ""))
    return " ".join(part for part in (llama_version(run.versions), f"({commit})" if commit else "") if part)


def _value(cell: CellSummary, metric: str) -> float:
    return cell.metrics[metric].value if metric in cell.metrics else math.nan


def _known(value: float) -> float | None:
    return value if math.isfinite(value) and value > 0 else None


def _limit(found: Roofline) -> Limit:
    if found.fits_in_cache:
        return "cached"
    if math.isnan(found.mbu):
        return "unknown"
    return "memory bandwidth" if found.mbu >= NEAR_LIMIT else "compute"


def _best(cells: Iterable[CellSummary]) -> Settings | None:
    """Return the fastest layout with the most users that were measured; None where only one layout was."""
    speeds = {
        (int(cell.settings["users"]), str(cell.settings["layout"])): _value(cell, "tokens_per_s") for cell in cells
    }
    known = {key: speed for key, speed in speeds.items() if math.isfinite(speed)}
    most = max((users for users, _layout in known), default=0)
    tried = {layout: speed for (users, layout), speed in known.items() if users == most}
    if len(tried) < 2:
        return None
    layout = max(tried, key=lambda one: tried[one])
    return Settings(layout=layout, per_s=tried[layout], num_users=most, num_tried=len(tried))

"""Quantisation plan: measures all quantisations of a model at few and many sequences, and compares their answers."""

from collections.abc import Sequence
from pathlib import Path

from engine.bench.planning.plan import Plan
from engine.bench.planning.presets import with_timeout
from engine.errors import ConfigError
from engine.files import named_path
from engine.machine.cores import num_cores
from engine.stats import FIRST_LOOK

SEQUENCES = (1, 2, 4, 8)
"""Low-bit formats are said to gain most where few sequences share the reading of the weights."""


def quantisations_plan(models: Sequence[str | Path], *, cores: int | None = None) -> Plan:
    """Return the plan of every file at every number of SEQUENCES, in one process with `cores` threads.

    models: the original first; the answers of all others are compared with its own, so all need the same vocabulary.
    cores: None for all that the process may use. Raises ConfigError for fewer than two different files.
    """
    files = tuple(dict.fromkeys(str(named_path(model)) for model in models))
    if len(files) < 2:
        raise ConfigError("one file of a model cannot be compared: quantise it first, or name another file of it")
    axes = {"parallel": SEQUENCES, "model": files}
    plan = Plan(
        name="All quantisations",
        question="speed",
        model=files[0],
        axes=axes,
        pool={"instances": 1, "threads": cores or num_cores()},
        workload={"num_prompt": 64, "num_generated": 32},
        rounds=FIRST_LOOK,
        compares_answers=True,
    )
    return with_timeout(plan)

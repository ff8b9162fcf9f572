"""Address of a comparison with another model: which one it is, and the models that it may be."""

from typing import NamedTuple

import streamlit as st

from engine.models import ModelFile
from engine.models.details import readable
from engine.specs import KV_TYPES
from engine.workbench import Workbench
from engine.workbench.model_diffs import DiffTask, Other
from engine.workbench.trials import Trial
from pages.parts import address
from pages.parts.models import place

MODEL, KV = "diff", "kv"
"""Query parameters of the URL: the other model's path, or OWN; and the type of keys and values, if another one."""
OWN, RECORDED = "own", ""


class Asked(NamedTuple):
    """Comparison in the URL. files: the models to choose from, by their path in a URL; chosen: one of them, or OWN; kv:
    type of keys and values, or RECORDED; unknown: a path that is none of them, else empty; task: the last comparison of
    the trial with this, None where there is none.
    """

    files: dict[str, ModelFile]
    chosen: str
    kv: str
    unknown: str
    task: DiffTask | None

    @property
    def other(self) -> Other:
        """The other side."""
        return _other(self.files, self.chosen, self.kv)


def asked(bench: Workbench, trial: Trial | None) -> Asked | None:
    """Return the comparison in the URL; None where it is not open."""
    if trial is None or MODEL not in st.query_params:
        return None
    files, path, kv = place.models(), st.query_params[MODEL], st.query_params.get(KV, RECORDED)
    chosen, kv = path if path in files else OWN, kv if kv in KV_TYPES else RECORDED
    unknown = "" if path in (chosen, OWN) else path
    return Asked(files, chosen, kv, unknown, bench.diffs.of(trial.id, _other(files, chosen, kv)))


def _other(files: dict[str, ModelFile], chosen: str, kv: str) -> Other:
    model = files[chosen].path if chosen != OWN else None
    return Other(model, (("type_k", kv), ("type_v", kv)) if kv else ())


def query(task: DiffTask) -> dict[str, str]:
    """Return the query parameters of the URL at which a comparison is watched."""
    other, settings = task.other, dict(task.other.settings)
    kv = {KV: str(settings["type_k"])} if "type_k" in settings else {}
    return {"trial": task.trial.id, MODEL: readable(other.model) if other.model else OWN, **kv}


def open_for(trial: Trial) -> None:
    """Open the comparison with the model that suggests itself; call in a callback."""
    address.put(MODEL, _suggested(trial, place.models()))


def close() -> None:
    """Close the comparison; call in a callback."""
    address.put(MODEL, "")
    address.put(KV, "")


def _suggested(trial: Trial, files: dict[str, ModelFile]) -> str:
    """Return the path of another file of the trial's model, else of any other file, else OWN."""
    others = [path for path, file in files.items() if str(file.path) != trial.model.path]
    alike = [path for path in others if files[path].name == trial.model.name]
    return next(iter([*alike, *others]), OWN)

"""Address of a comparison with another model: which one it is, and the models that it may be."""

from typing import NamedTuple

import streamlit as st

from engine.models import ModelFile
from engine.models.details import readable
from engine.specs import DTYPES, KV_TYPES
from engine.workbench import Workbench
from engine.workbench.model_diffs import DiffTask, Other
from engine.workbench.trials import Trial
from pages.parts import address
from pages.parts.models import place

MODEL, KV, TORCH = "diff", "kv", "torch"
"""Query parameters of the URL: the other model's path, or OWN; the type of keys and values, if another one; and the
type in which transformers runs the other model, if it does."""
OWN, RECORDED = "own", ""


class Asked(NamedTuple):
    """Comparison in the URL. files: the models to choose from, by their path in a URL; chosen: one of them, or OWN; kv:
    type of keys and values, or RECORDED; torch: type of weights in transformers, or RECORDED; unknown: a path that is
    none of them, else empty; task: the last comparison of the trial with this, None where there is none.
    """

    files: dict[str, ModelFile]
    chosen: str
    kv: str
    torch: str
    unknown: str
    task: DiffTask | None

    @property
    def other(self) -> Other:
        """The other side."""
        return _other(self.files, self.chosen, self.kv, self.torch)


def asked(bench: Workbench, trial: Trial | None) -> Asked | None:
    """Return the comparison in the URL; None where it is not open."""
    if trial is None or MODEL not in st.query_params:
        return None
    files, path, kv = place.models(), st.query_params[MODEL], st.query_params.get(KV, RECORDED)
    chosen, kv = path if path in files else OWN, kv if kv in KV_TYPES else RECORDED
    torch = dtype if (dtype := st.query_params.get(TORCH, RECORDED)) in DTYPES else RECORDED
    unknown = "" if path in (chosen, OWN) else path
    return Asked(files, chosen, kv, torch, unknown, bench.diffs.of(trial.id, _other(files, chosen, kv, torch)))


def _other(files: dict[str, ModelFile], chosen: str, kv: str, torch: str) -> Other:
    model = files[chosen].path if chosen != OWN else None
    settings = {"dtype": torch} if torch else {"type_k": kv, "type_v": kv} if kv else {}  # PyTorch's have its type
    return Other(model, tuple(settings.items()))


def query(task: DiffTask) -> dict[str, str]:
    """Return the query parameters of the URL at which a comparison is watched."""
    other, settings = task.other, dict(task.other.settings)
    own = {KV: settings.get("type_k"), TORCH: settings.get("dtype")}
    shown = {name: str(value) for name, value in own.items() if value}
    return {"trial": task.trial.id, MODEL: readable(other.model) if other.model else OWN, **shown}


def open_for(trial: Trial) -> None:
    """Open the comparison with the model that suggests itself; call in a callback."""
    address.put(MODEL, _suggested(trial, place.models()))


def close() -> None:
    """Close the comparison; call in a callback."""
    address.put(MODEL, "")
    for name in (KV, TORCH):
        address.put(name, "")


def _suggested(trial: Trial, files: dict[str, ModelFile]) -> str:
    """Return the path of another file of the trial's model, else of any other file, else OWN."""
    others = [path for path, file in files.items() if str(file.path) != trial.model.path]
    alike = [path for path in others if files[path].name == trial.model.name]
    return next(iter([*alike, *others]), OWN)

"""Model file of a stored trial: found by its content, wherever it is now."""

from collections.abc import Iterator
from pathlib import Path

from engine.backends.managed_programs import MANAGED
from engine.errors import ModelError
from engine.history import ModelIdentity, TrialRecord
from engine.models.details import readable
from engine.models.gguf import ModelFile
from engine.models.identity import model_hash
from engine.models.library import read_library
from engine.models.reading import read_model


def is_managed(trial: TrialRecord) -> bool:
    """Return whether a server answered that was started here for the trial's model."""
    return trial.engine is not None and not trial.engine.url and trial.engine.name in MANAGED


def file_of(trial: TrialRecord, given: Path | None = None, *, may_be_managed: bool = False) -> ModelFile:
    """Return the file of a trial's model, unchanged since; reads a whole file the first time it is seen.

    given: where it is now; None: where it was, else in the library. Raises ModelError where it is missing or has
    changed, and for a trial of an external engine, but one that was started here where may_be_managed.
    """
    model = trial.model
    if trial.engine is not None and not (may_be_managed and is_managed(trial)):
        raise ModelError(
            f"This trial was answered by {readable(trial.engine.name)}, an external engine, so there is no model file "
            "to run again."
        )
    if not model.hash:
        raise ModelError(
            f"This trial was imported from a log, which does not tell which file {readable(model.name)} was, so its "
            "model cannot be run again."
        )
    was_at = Path(model.path) if given is None else given
    for path in [was_at] if given is not None else _candidates(model):
        if path.exists() and model_hash(path) == model.hash:
            return read_model(path)
    if was_at.exists():
        raise ModelError(
            f"{readable(was_at)} is not the file that this trial was run with: its SHA-256 is {model_hash(was_at)}, "
            f"that of the trial's model {model.hash}. It was changed or replaced; restore it to run the trial again."
        )
    raise ModelError(
        f"{readable(was_at)}, the model of this trial, is missing: it was moved or deleted. Put it back, or into a "
        "folder of the model library."
    )


def _candidates(model: ModelIdentity) -> Iterator[Path]:
    """Yield where the file was, then the library's files that have its content or may have it."""
    was_at = Path(model.path)
    if was_at.is_absolute():
        yield was_at
    for entry in read_library():
        if isinstance(entry.file, ModelFile) and (
            entry.sha256 == model.hash or (entry.sha256 is None and entry.file.path.name == was_at.name)
        ):
            yield entry.file.path

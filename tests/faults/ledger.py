"""What the workbench has acknowledged as kept, and where it must be found again."""

import io
import json
import random
import shutil
import urllib.request
import zipfile
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.errors import EngineError
from engine.history import History
from tests.faults.app import until
from tests.faults.failure import MOST_S, Failure

ASKED_AT_ONCE = 24
DATABASE = "history.duckdb"


class Ledger:
    """Trials and runs that a client was shown as kept; `forget` what a person has deleted.

    A trial counts as acknowledged once the history itself has answered with it. Samples of runs are counted.
    """

    def __init__(self) -> None:
        self.trials: set[str] = set()
        self.runs: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.trials) + len(self.runs)

    def forget(self, id: str) -> None:
        """It may be there or not from now on."""
        self.trials.discard(id)
        self.runs.pop(id, None)

    def acknowledge(self, url: str, links: str, trials: Iterable[str], draw: random.Random) -> None:
        """Wait until the running workbench has kept these trials, and find others of before beside them.

        links: the address of the history's download, as the page gives it.
        """
        new = list(trials)
        before = draw.sample(sorted(self.trials), min(len(self.trials), ASKED_AT_ONCE))
        until(lambda: set(new) <= exported(url, links, new), f"trials that ended well were not kept: {new}")
        self.trials.update(new)
        if set(before) - exported(url, links, before):
            lost = [trial for trial in before if not exported(url, links, [trial])]
            raise Failure(f"{len(lost)} acknowledged trials are gone: {lost[:3]}")

    def find_all(self, home: Path) -> None:
        """Look for every acknowledged row in the file of a workbench that does not run; on a copy of it."""
        with TemporaryDirectory() as folder:
            for name in (DATABASE, f"{DATABASE}.wal"):
                if (home / name).exists():
                    shutil.copyfile(home / name, Path(folder, name))
            try:
                with History.open(Path(folder, DATABASE)) as history:
                    self._find_all(history)
            except EngineError as error:
                raise Failure(f"the history cannot be opened: {error}") from error

    def _find_all(self, history: History) -> None:
        found = {one.id for one in history.recent(1_000_000)}
        if lost := self.trials - found:
            raise Failure(f"{len(lost)} of {len(self.trials)} acknowledged trials are gone: {sorted(lost)[:3]}")
        for id, num_samples in self.runs.items():
            run = history.runs.run(id)
            if run is None or len(run.samples) < num_samples:
                there = "no such run" if run is None else f"{len(run.samples)} samples"
                raise Failure(f"run {id}: {there}, {num_samples} samples were acknowledged")


def exported(url: str, link: str, trials: list[str]) -> set[str]:
    """Which of these trials the history's download holds; none of them where it refuses, as for one that is not there.

    Raises Failure where the download breaks.
    """
    if not trials:
        return set()
    try:
        with urllib.request.urlopen(f"{url}{link}?trials={','.join(trials)}", timeout=MOST_S) as answer:
            content = answer.read()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            lines = archive.read("trials.jsonl").splitlines()
    except urllib.request.HTTPError as error:
        if error.code == 409:
            return set()
        raise Failure(f"the download answered {error.code}") from error
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise Failure(f"the download broke: {error!r}") from error
    return {json.loads(line)["id"] for line in lines}

"""Disturbance: number of disturbed samples of a run, the causes, and whether those samples count."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.jsonable import figure
from engine.machine.noise import OTHER_SHARE, STEAL_SHARE
from engine.runs import RunRecord
from engine.samples import FEWEST_CLEAN, FLAGS, Samples
from engine.stats import Verdict
from engine.units import cores, counted, percent

OTHERS, HOST, THROTTLED, COLD = "by other programs", "taken by the host", "throttled", "read from the disk"
"""Causes of disturbance; a sample may have two of them."""

PROGRAMS = "programs"
"""Key of a run's outcome: cores that other programs used while disturbed samples were taken, by name."""

_LEAST_WAITING = 0.01


class Disturbance(NamedTuple):
    """Disturbed samples of a run.

    num: disturbed samples, of total, both without replaced ones; num_replaced: those. num_excluded: disturbed samples
    left out of medians and verdicts, all or none.
    causes: number of samples by cause. other_cores: median of the cores that other programs used in the samples that
    they disturbed; waiting_share: median over all disturbed samples of the share of time in which a task waited for a
    processor (PSI); NaN where not known. programs: cores used by other programs, by name, most first; empty where not
    known.
    """

    num: int
    total: int
    num_replaced: int
    num_excluded: int
    causes: Mapping[str, int]
    other_cores: float
    waiting_share: float
    programs: Mapping[str, float]

    @property
    def is_mostly(self) -> bool:
        """True where more than half of the samples were disturbed: another run then helps more than further rounds."""
        return _is_most(self.num, self.total)

    @property
    def samples(self) -> str:
        """The numbers of samples in words."""
        return samples_in_words(self.num, self.total, self.num_replaced)

    @property
    def sentence(self) -> str:
        """The disturbance as a sentence; empty where no sample was disturbed."""
        if not self.num:
            return ""
        causes = ", ".join(self._cause(name, num) for name, num in self.causes.items())
        waiting = ""
        if self.waiting_share >= _LEAST_WAITING:
            waiting = f"; tasks waited for CPU {percent(self.waiting_share)} of the time"
        return f"{self.samples}: {causes}{waiting}. {self._consequence}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = self._asdict() | {"causes": dict(self.causes), "programs": dict(self.programs)}
        return {name: figure(value) if isinstance(value, float) else value for name, value in values.items()} | {
            "sentence": self.sentence
        }

    @property
    def _consequence(self) -> str:
        if self.num_excluded:
            return f"Medians and verdicts exclude {'it' if self.num == 1 else 'them'}."
        count, them = ("It is included", "it") if self.num == 1 else ("They are included", "them")
        return f"{count}: without {them} some configuration would have fewer than {FEWEST_CLEAN} rounds."

    def _cause(self, name: str, num: int) -> str:
        many = "" if len(self.causes) == 1 else f"{num:,} "
        if name != OTHERS or not math.isfinite(self.other_cores):
            return many + name
        named = ", ".join(f"{program} {cores(used)}" for program, used in self.programs.items())
        return f"{many}{name} ({cores(self.other_cores)}{f', mostly {named}' if named else ''})"


def samples_in_words(num_disturbed: int, total: int, num_replaced: int) -> str:
    """Return in words how many samples a run has, how many of them were disturbed, and how many others replaced."""
    said = counted(total, "sample")
    if num_disturbed:
        said = f"{num_disturbed:,} of {said} {'was' if num_disturbed == 1 else 'were'} disturbed"
    return said + (
        f" ({num_replaced:,} more {'was' if num_replaced == 1 else 'were'} replaced)" if num_replaced else ""
    )


def is_mostly_disturbed(samples: Samples) -> bool:
    """Return whether more than half of these samples were disturbed, without replaced ones."""
    kept = samples["flag"][~samples["is_replaced"]]
    return _is_most(int((kept != FLAGS.index("clean")).sum()), len(kept))


def without_rounds(verdict: Verdict) -> Verdict:
    """Return a verdict from mostly disturbed samples, which asks for no rounds: a run on a quiet machine helps more."""
    return verdict._replace(more_rounds=0)


def disturbance_of(run: RunRecord, counted_samples: Samples) -> Disturbance:
    """Return the disturbance of all samples of a run; counted_samples: those of them that medians use."""
    samples, clean = run.samples, FLAGS.index("clean")
    is_kept = ~samples["is_replaced"]
    is_disturbed = is_kept & (samples["flag"] != clean)
    num = int(is_disturbed.sum())
    causes = {name: chosen for name, chosen in _causes(run).items() if (chosen & is_disturbed).any()}
    return Disturbance(
        num=num,
        total=int(is_kept.sum()),
        num_replaced=int((~is_kept).sum()),
        num_excluded=num - int((counted_samples["flag"] != clean).sum()),
        causes={name: int((chosen & is_disturbed).sum()) for name, chosen in causes.items()},
        other_cores=_median(samples["other_cores"][causes[OTHERS] & is_disturbed]) if OTHERS in causes else math.nan,
        waiting_share=_median(samples["pressure_share"][is_disturbed]),
        programs=dict(run.outcome.get(PROGRAMS, {})),
    )


def basis(run: RunRecord, samples: Samples, num_counted: int) -> str:
    """Describe a figure's data where it is weak ("one contended sample of an interrupted run"); else return "".

    samples: those of its configuration; num_counted: number of them in its median.
    """
    kept = samples[~samples["is_replaced"]]
    flags = {FLAGS[flag] for flag in kept["flag"].tolist()}
    is_clean = "clean" in flags or not flags
    is_whole = run.status == "done"
    if num_counted >= FEWEST_CLEAN and is_clean and is_whole:
        return ""
    kind = "" if is_clean else f"{flags.pop()} " if len(flags) == 1 else "disturbed "
    number = "one" if num_counted == 1 else f"{num_counted:,}"
    said = f"{number} {kind}sample{'' if num_counted == 1 else 's'}"
    return said if is_whole else f"{said} of {_OF_RUN.get(run.status, 'an unfinished run')}"


_OF_RUN = {"interrupted": "an interrupted run", "stopped": "a stopped run", "failed": "a failed run"}


def _causes(run: RunRecord) -> dict[str, npt.NDArray[np.bool_]]:
    """Return a mask of the disturbed samples by cause, as flagged by engine.machine.noise."""
    samples, cores = run.samples, run.machine.get("allowed_cores")
    is_contended = samples["flag"] == FLAGS.index("contended")
    is_stolen = is_contended & (samples["steal_share"] > STEAL_SHARE)
    least = OTHER_SHARE * len(cores) if isinstance(cores, list) else math.inf
    return {
        OTHERS: is_contended & (~is_stolen | (samples["other_cores"] > least)),
        HOST: is_stolen,
        THROTTLED: samples["flag"] == FLAGS.index("throttled"),
        COLD: samples["flag"] == FLAGS.index("cold"),
    }


def _is_most(num: int, total: int) -> bool:
    return 2 * num > total


def _median(values: npt.NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else math.nan

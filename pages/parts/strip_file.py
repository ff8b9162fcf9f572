"""Trials as one HTML file that works offline: their token strip with inspector and X-ray, and the tree of branches."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import UTC
from pathlib import Path
from typing import Any

from engine.comparing.branch_tree import branches_of
from engine.history.trials import title_of
from engine.specs import Sampling
from engine.units import counted
from engine.validation import Spec
from engine.workbench.branching import Relative
from engine.workbench.trials import Trial
from pages.parts import branches
from pages.parts.live import Feed
from pages.parts.offline_file import document, json_block, text_of
from pages.parts.token_strip import Branches, offline_script, style
from pages.parts.wire import Words

HELP = (
    "p: the model's probability of the branch's first token. bits/token: mean surprise of its tokens. Dotted: a forced "
    "token. Click a row to open its trial."
)
STYLE = Path(__file__).with_name("strip_file.css")
ALWAYS_SHOWN = ("temperature", "top_k", "top_p", "min_p")
NO_SCRIPTS = "Scripts are switched off here, so the tokens cannot be inspected. The text alone:"


def strip_html(trials: Sequence[Trial], family: Sequence[Relative] = ()) -> bytes:
    """Return the file of ended trials, opened at the first; `family`: those of them that are drawn as a tree.

    All text from people and models is escaped. Flip limits are left out, as they are computed when they are looked at.
    """
    held = HeldTrials()
    for trial in trials:
        held.add(trial)
    first = trials[0]
    title = title_of(first.draft.prompt, first.draft.messages) or "Trial"
    body = [
        f"<h1>{text_of(title)}</h1>",
        *(_about(trial, f'<p class="muted">{text_of(_facts(trial))}</p>') for trial in trials),
        f'<div class="held-strip"></div>{plain_text(first)}',
        *(_about(trial, details(trial)) for trial in trials),
        '<p class="muted">Made with Logitbench. This file loads nothing from the network.</p>',
        json_block(_file(trials, family), "file"),
        *held.blocks(),
    ]
    return document(title, body, style=strip_style(), scripts=[offline_script("opened")])


class HeldTrials:
    """Ended trials that an offline file holds for its strips, as the web socket would send them."""

    def __init__(self) -> None:
        self._words = Words()
        self._texts: list[list[Any]] = []
        self._blocks: dict[str, str] = {}
        self._num_bytes = 0  # of the blocks

    def add(self, trial: Trial, most_bytes: float = math.inf) -> bool:
        """Add a trial, unless the blocks would then take more bytes; return whether the file has it.

        A trial is added once only.
        """
        if trial.id in self._blocks:
            return True
        words, texts = self._words.copy(), list(map(list, self._texts))
        block = json_block(list(_messages(trial, words, texts)), f"trial-{trial.id}")
        num_bytes = self._num_bytes + len(block.encode())
        if num_bytes + len(_texts_block(texts).encode()) > most_bytes:
            return False
        self._words, self._texts, self._num_bytes = words, texts, num_bytes
        self._blocks[trial.id] = block
        return True

    def blocks(self) -> Iterator[str]:
        """Yield the elements that hold the texts of the tokens of each vocabulary, and the trials; none without any."""
        if self._blocks:
            yield _texts_block(self._texts)
            yield from self._blocks.values()


def _texts_block(texts: list[list[Any]]) -> str:
    return json_block(texts, "words")


def _messages(trial: Trial, words: Words, texts: list[list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield the messages of a trial, and move the texts of their tokens to `texts`, by the vocabulary's number."""
    feed = Feed(trial.id, trial, words, 0, latency=False)
    while not feed.is_over and (message := feed.message()) is not None:
        for name in message.keys() & {"prompt", "steps"}:
            batch = message[name]
            if batch["v"] == len(texts):
                texts.append([])
            texts[batch["v"]] += batch.pop("words")
        yield message


def strip_style() -> str:
    """Return the style sheet of the strips in an offline file."""
    return f"{STYLE.read_text('utf-8')}{style()}"


def _file(trials: Sequence[Trial], family: Sequence[Relative]) -> dict[str, Any]:
    """Return the ids of the trials, and the tree with what each row opens and the row that each trial ends with."""
    ids = [trial.id for trial in trials]
    if len(family) < 2:
        return {"trials": ids, "branches": None, "opens": {}, "ends": {}}
    rows, found = branches.rows(trials[0], family), branches_of(one.path for one in family)
    title = f"Branches · {counted(len(family), 'trial')}"
    return {
        "trials": ids,
        "branches": Branches(title=title, note="", help=HELP, heads=branches.HEADS, rows=rows, can_mark=False),
        "opens": {row["key"]: (branch.ends or branch.trials)[-1] for row, branch in zip(rows, found, strict=True)},
        "ends": {id: index for index, branch in enumerate(found) for id in branch.ends},
    }


def _about(trial: Trial, content: str) -> str:
    """Return an element that is shown while this trial is open."""
    return f'<div class="about" data-trial="{trial.id}" hidden>{content}</div>'


def _facts(trial: Trial) -> str:
    model = trial.model
    at = trial.created_at.astimezone(UTC)
    return " · ".join(part for part in (model.name, model.quantisation, f"{at.day} {at:%B %Y, %H:%M} UTC") if part)


def details(trial: Trial) -> str:
    """Return the parameters of a trial, folded away."""
    sampling, request = trial.draft.sampling, trial.draft.request
    shown = {
        **dict(_changed(sampling)), "seed": trial.seed, "max_tokens": request.max_tokens,
        **({"stop": list(request.stop)} if request.stop else {}),
        "model": trial.model.hash and f"SHA-256 {trial.model.hash}",
    }  # fmt: skip
    pairs = "".join(f"<div><dt>{text_of(name)}</dt><dd>{text_of(value)}</dd></div>" for name, value in shown.items())
    return f"<details><summary>Parameters</summary><dl>{pairs}</dl></details>"


def _changed(spec: Spec) -> Iterable[tuple[str, Any]]:
    """Return the parameters of sampling that are always shown, and those that are not the default."""
    default = Sampling()
    for field in fields(default):
        value = getattr(spec, field.name)
        if field.name in ALWAYS_SHOWN or (value != getattr(default, field.name) and field.name != "seed"):
            yield field.name, value


def plain_text(trial: Trial) -> str:
    """Return the text of a trial, for a browser that runs no scripts."""
    text = "\n".join(map(text_of, f"{trial.draft.prompt}\n\n{trial.steps.text}".splitlines()))
    return f"<noscript><p>{NO_SCRIPTS}</p><pre>{text}</pre></noscript>"

"""A small server with written-out trials, so that socket and strip are tested without a model's weather.

The figures are drawn from a seeded generator over a vocabulary of our own; engine tests hold the true ones.
"""

import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from engine.errors import ConfigError
from engine.history.trial_file import read_trial
from engine.llama.frozen import Flip, Resampler
from engine.models.library import shipped
from engine.step_parts import FORCED, INSPECTED, RECORD
from engine.steps import StepTable
from engine.tasks import Task
from engine.vocabulary import TokenKind, Vocabulary
from engine.watched_words import Variant, Word
from engine.workbench.resampling import SampledAgain, sample_again
from engine.workbench.trials import Draft, StoredTrial, Trial
from engine.workbench.word_watching import Figures, Line, Watching
from pages.parts import live, token_strip
from tests.processes import free_port
from tests.waiting import until

STORY = (
    "Once upon a time there was a poor miller who had three sons, and when he died he left nothing to them but his "
    "mill, his ass, and his cat.\nThe eldest took the mill, the second the ass, and the youngest had nothing but the "
    'cat. "What shall I do?" said he. "My brothers may get their living by joining together, but when I have eaten my '
    'cat and made a muff of his skin, I must die of hunger."\nThe cat, who heard all this, but took no notice, said to '
    'him with a grave and serious air, "Do not be troubled, master."'
)
END, BOS, NUM_BYTES = 2, 1, 256


def vocabulary_of(*texts: str) -> Vocabulary:
    """<unk>, <s>, </s>, one token for each byte, then the pieces of the texts and some more words."""
    words = pieces_of(" the a his her and of to in was said king queen little old great house wood then there never")
    known = dict.fromkeys(piece for text in texts for piece in pieces_of(text) if len(piece) > 1 or piece.isascii())
    pieces = [b"", b"", b"", *(bytes([byte]) for byte in range(NUM_BYTES))]
    pieces += [piece.encode() for piece in dict.fromkeys([*known, *words])]
    kinds = bytearray(len(pieces))
    kinds[0] = kinds[BOS] = TokenKind.CONTROL
    kinds[END] = TokenKind.CONTROL | TokenKind.END
    kinds[3 : 3 + NUM_BYTES] = bytes([TokenKind.BYTE]) * NUM_BYTES
    return Vocabulary(tuple(pieces), bytes(kinds), {0: "<unk>", BOS: "<s>", END: "</s>"}, BOS, True, False)


def pieces_of(text: str) -> list[str]:
    """Word-like pieces, a leading space with its word, long words in two."""
    pieces: list[str] = []
    for piece in re.findall(r" ?[A-Za-z]+|\n| ?[^\sA-Za-z]|[^\S\n]+", text):
        pieces += [piece[:6], piece[6:]] if len(piece) > 9 else [piece]
    return pieces


def ids_of(vocabulary: Vocabulary, text: str) -> list[int]:
    """Token ids of a text; what is no piece goes byte by byte."""
    ids: list[int] = []
    for piece in pieces_of(text):
        raw = piece.encode()
        known = vocabulary.pieces.index(raw) if raw in vocabulary.pieces else None
        ids += [known] if known is not None else [3 + byte for byte in raw]
    return ids


def append_tokens(table: StepTable, ids: list[int], *, seed: int = 0, is_inspected: bool = True, k: int = 50) -> None:
    """Add tokens with figures that fit together: sorted candidates, a sampler that keeps some, times near 17 ms."""
    random = np.random.default_rng(seed + 7919 * len(table))
    count, k = len(ids), min(k, table.k)
    records = np.zeros(count, RECORD)
    top_ids, top_logprobs = np.full((count, table.k), -1, np.int32), np.zeros((count, table.k), np.float32)
    top_p_final = np.zeros((count, table.k), np.float32)
    for row, token in enumerate(ids):
        share = random.choice([0.88, 0.6, 0.3, 0.12], p=[0.5, 0.2, 0.2, 0.1])
        p = share * (1 - share) ** np.arange(k + 10) * random.uniform(0.6, 1, k + 10) + 1e-6
        p = np.sort(p / p.sum())[::-1]
        rank = 1 + int(random.choice(len(p), p=p))
        words, rest = np.arange(3 + NUM_BYTES, len(table.vocabulary)), np.arange(END, 3 + NUM_BYTES)
        others = np.concatenate([random.permutation(words), rest])
        others = others[others != token]
        order = np.insert(others[: k + 9], rank - 1, token)[: k + 10]
        num_kept = max(rank, int((p > 0.05 * p[0]).sum()))
        final = np.where(np.arange(len(p)) < num_kept, p**1.25, 0)
        final /= final.sum()
        top_ids[row, :k], top_logprobs[row, :k], top_p_final[row, :k] = order[:k], np.log(p[:k]), final[:k]
        records[row]["id"], records[row]["rank"], records[row]["logprob"] = token, rank, np.log(p[rank - 1])
        records[row]["entropy"], records[row]["p_final"] = -(p * np.log(p)).sum(), final[rank - 1]
        records[row]["draw"], records[row]["num_kept"] = random.random(), num_kept
        records[row]["elapsed_s"] = 0.017 * random.lognormal(0, 0.15)
    records["flags"] = INSPECTED if is_inspected else 0
    table.append(records, top_ids, top_logprobs, top_p_final)


class ScriptedTrial:
    """A trial whose tokens a test lets out."""

    def __init__(
        self, text: str = STORY, prompt: str = "Once upon a time", *, k: int = 50, scored: bool = False
    ) -> None:
        self.vocabulary = vocabulary_of(text, prompt)
        self.prompt_steps = StepTable(self.vocabulary, k, is_prompt=True)
        self.steps = StepTable(self.vocabulary, k)
        append_tokens(self.prompt_steps, [BOS, *ids_of(self.vocabulary, prompt)], is_inspected=False)
        if scored:
            self.prompt_steps.records["flags"][1:] = INSPECTED
            self.prompt_steps.records["p_final"] = np.nan
        self.rest = ids_of(self.vocabulary, text.removeprefix(prompt))
        self.state: dict[str, Any] = {"state": "running", "num_prompt": len(self.prompt_steps), "n_ctx": 512}
        self.end: dict[str, Any] | None = None
        self.logit_bias: tuple[tuple[int, float], ...] = ()
        self.id, self.draft, self.prompt_ids = uuid4().hex, Draft(prompt), tuple(self.prompt_steps.ids)
        self._listeners: list[Callable[[], None]] = []

    def go_on(self, count: int = 1 << 30, *, ids: list[int] | None = None) -> None:
        """Decode some more tokens."""
        new, self.rest = (ids, self.rest) if ids is not None else (self.rest[:count], self.rest[count:])
        append_tokens(self.steps, new)
        total = len(self.prompt_steps) + len(self.steps)
        self.tell(num_generated=len(self.steps), num_context=total, tok_per_s=57.31, ttft_ms=6.2, num_cached=4)

    def force(self, index: int) -> None:
        """Mark a token as given, not drawn."""
        self.steps.records["flags"][index] |= FORCED

    def finish(self, sentence: str = "Stopped: the model chose to end.", **more: Any) -> None:
        """No token follows."""
        self.end = {"finish_reason": "stop", "sentence": sentence, "error": "", "seed": 42, "timings": {}, **more}
        self.tell(state="done")

    def tell(self, **status: Any) -> None:
        """Change the figures and wake who listens."""
        self.state = {**self.state, **status}
        for listener in list(self._listeners):
            listener()

    @property
    def num_listeners(self) -> int:
        """How many feeds are open."""
        return len(self._listeners)

    def add_listener(self, callback: Callable[[], None]) -> Callable[[], None]:
        """As live.Watched."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    def done(self) -> bool:
        """As live.Watched."""
        return self.end is not None

    def status(self) -> dict[str, Any]:
        """As live.Watched."""
        return self.state

    def ending(self) -> dict[str, Any]:
        """As live.Watched."""
        return self.end or {}


class ScriptedBench:
    """The workbench as the socket knows it."""

    def __init__(self) -> None:
        self.trials: dict[str, ScriptedTrial] = {}
        self.recorded: dict[str, StoredTrial] = {}
        self.resampler = Resampler()
        self.tokenizer: live.Tokenises | None = None
        self.words = ScriptedWords(self)

    def watch(self, trial_id: str) -> ScriptedTrial | StoredTrial | None:
        """As live.Trials."""
        return self.trials.get(trial_id) or self.recorded.get(trial_id)

    def flips(self, trial_id: str, step: int) -> list[Flip]:
        """As live.Trials: one limit for an even step, an error for an odd one."""
        if step % 2:
            raise ConfigError("not known")
        return [Flip("temperature", True, 0.9, self.trials[trial_id].steps.ids[step])]

    def resample(self, trial_id: str, changed: Mapping[str, float], shown: int | None = None) -> SampledAgain:
        """As live.Trials: llama.cpp's own chain on the candidates of the trial."""
        return sample_again(self.resampler, cast(Trial, self.watch(trial_id)), changed, shown)

    def record(self) -> StoredTrial:
        """Add the trial that ships with the workbench, of the real model, as `recorded`."""
        (path,) = shipped("demo").glob("*.trial")
        self.recorded["recorded"] = trial = StoredTrial(read_trial(path))
        return trial

    def tokenizer_of(self, path: Path | None) -> live.Tokenises:
        """As live.Tokenizers."""
        if self.tokenizer is None:
            raise ConfigError("No model is loaded.")
        return self.tokenizer


class ScriptedWords:
    """The watcher of words as the socket knows it: figures from a seeded generator, phrases when a test allows them."""

    def __init__(self, bench: ScriptedBench) -> None:
        self._bench = bench
        self.asked: list[tuple[list[str], list[str]]] = []
        self.tasks: list[Task[None]] = []
        self.go_on = threading.Event()

    def watch(self, trial_id: str, typed: Sequence[str], phrases: Collection[str] = ()) -> Watching:
        """As word_feed.WatchesWords: a word with a space inside is a phrase, one with a question mark is refused."""
        self.asked.append(([*typed], [*phrases]))
        trial = self._bench.trials[trial_id]
        if "refuse this" in typed:
            raise ConfigError("This trial was run with another model.")
        lines = [self._line(trial, one) for one in typed]
        watching = Watching(lines, trial.vocabulary)
        wanted = [line for line in lines if line.word and line.figures is None and line.typed in phrases]
        if wanted:
            watching.task = Task("Watched words", lambda task: self._compute(task, trial, wanted)).start()
            self.tasks.append(watching.task)
        return watching

    def _line(self, trial: "ScriptedTrial", typed: str) -> Line:
        if "?" in typed:
            return Line(typed, None, None, "Nothing is known of questions.")
        ids = tuple(ids_of(trial.vocabulary, typed))
        word = Word(typed, (Variant(f'"{typed}"', ids),), ())
        if "|" in typed:
            variants = [Variant(f'"{one}"', tuple(ids_of(trial.vocabulary, one))) for one in typed.split("|")]
            word = Word(typed, tuple(variants), (Variant('"many tokens"', (5, 6, 7)),))
        is_known = trial.done() and not word.passes
        return Line(typed, word, figures_of(trial, typed) if is_known else None)

    def _compute(self, task: Task[None], trial: "ScriptedTrial", wanted: Sequence[Line]) -> None:
        task.update(0.25, "the first of 4 positions", left_s=90.0)
        while not self.go_on.wait(0.02):
            task.check()
        for line in wanted:
            line.figures = figures_of(trial, line.typed)


def figures_of(trial: ScriptedTrial, typed: str) -> Figures:
    """Probabilities at each position of a trial and behind it, none at the first; the same for the same word."""
    random = np.random.default_rng(sum(typed.encode()))
    num = len(trial.prompt_steps) + len(trial.steps) + 1
    logprob = np.log(random.uniform(1e-6, 0.6, num))
    logprob[0] = np.nan
    rank = random.integers(1, 400, num).astype(np.int32)
    rank[0] = 0
    return Figures(logprob, rank, 0.0125)


PAGE = """<!doctype html><meta charset="utf-8"><title>Strip</title><link rel="icon" href="data:,">
<style>
  :root {{ font-size: 15px; --st-background-color: {background}; --st-text-color: {text}; --st-link-color: {link};
    --st-primary-color: {primary}; --st-font: "DejaVu Sans", sans-serif; --st-code-font: "DejaVu Sans Mono"; }}
  body {{ margin: 0; padding: 32px 40px; background: var(--st-background-color); }}
</style>
<div id="host"></div>
<script type="module">
  import mount from "/strip.js";
  const root = document.getElementById("host").attachShadow({{ mode: "open" }});
  const sheet = document.createElement("link");
  Object.assign(sheet, {{ rel: "stylesheet", href: "/strip.css" }});
  const parentElement = document.createElement("div");
  root.append(sheet, parentElement);
  const options = new URLSearchParams(location.search);
  window.ended = [];
  const setTriggerValue = (name, value) => window.ended.push([name, value]);
  const data = {{ trial: options.get("trial"), socket: "{socket}", k: 10, mode: "surprise", unit: "p",
    inspector: true, asks: options.has("asks"), addressed: true, height: Number(options.get("height")) || null,
    words: options.has("watch") ? options.getAll("watch").filter(Boolean) : null,
    last: options.has("last"), shared: options.has("shared") ? Number(options.get("shared")) : null }};
  window.update = (changes) => {{ mount({{ data: {{ ...data, ...changes }}, parentElement, setTriggerValue }}); }};
  sheet.onload = () => {{ window.unmount = mount({{ data, parentElement, setTriggerValue }}); }};
</script>"""
THEMES = {
    "light": {"background": "#FFFFFF", "text": "#1F2328", "link": "#2B59C3", "primary": "#2B59C3"},
    "dark": {"background": "#14161A", "text": "#E6E8EB", "link": "#8FB0FF", "primary": "#3E6CE0"},
}


def application(bench: ScriptedBench) -> Starlette:
    """The routes of the product, and one page that mounts the strip of ?trial= in ?theme=."""

    def page(request: Request) -> Response:
        theme = THEMES[request.query_params.get("theme", "light")]
        return HTMLResponse(PAGE.format(**theme, socket=live.SOCKET_PATH))

    def served(make: Callable[[], str], media_type: str) -> Callable[[Request], Response]:
        return lambda _: Response(make(), media_type=media_type)

    own = [
        Route("/", page),
        Route("/strip.js", served(token_strip.script, "text/javascript")),
        Route("/inspector.js", served(token_strip.inspector_script, "text/javascript")),
        Route("/strip.css", served(token_strip.style, "text/css")),
    ]
    return Starlette(routes=[*live.routes(lambda: bench, lambda: bench, lambda: bench.words), *own])


class Server:
    """A uvicorn in a thread, which can be stopped and started again on its port."""

    def __init__(self, bench: ScriptedBench) -> None:
        self.bench = bench
        self.port = free_port()
        self.start()

    @property
    def host(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Serve; returns when the port answers."""
        config = uvicorn.Config(application(self.bench), port=self.port, log_level="error", ws="websockets-sansio")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        until(lambda: self._server.started, "the server does not start")

    def stop(self) -> None:
        """End as after Ctrl+C; returns when the server has ended."""
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive(), "the server did not end"


@contextmanager
def serving(bench: ScriptedBench) -> Iterator[Server]:
    """A server for the length of a block."""
    server = Server(bench)
    try:
        yield server
    finally:
        server.stop()
        bench.resampler.close()

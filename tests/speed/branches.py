"""Branches: decodes until the first new token of one, and a tree of a thousand rows in a real browser."""

import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

from engine.models.library import embedded_model
from engine.settings import Settings
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.branching import MOST_SAMPLES
from engine.workbench.trials import Draft, LiveTrial
from tests.speed.browser import app, chromium, visit
from tests.speed.common import Row, at_least, at_most

ROUNDS = 20
SHAPE = "the model that ships"
NUM_PROMPT, NUM_TOKENS, AT = 400, 24, 2
NUM_ROWS = 1000
ROWS = "[role=tree] [role=treeitem]"


def measure(num_rounds: int = ROUNDS, _shape: str = SHAPE) -> list[Row]:
    """Decodes of one branch; seconds of visits, each on a page of its own."""
    with tempfile.TemporaryDirectory() as home:
        num_decodes = _fill(Path(home))
        with app(str(embedded_model()), {"LOGITBENCH_HOME": home}) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            visits = [visit(browser, address, "Prompt lab", ROWS) for _ in range(num_rounds)]
            browser.close()
    seconds, rows = zip(*visits, strict=True)
    beside = f"median {np.median(seconds):.3f} s of {len(seconds)}; {rows[0]:,} rows"
    return [
        at_most(f"first new token of a branch, {NUM_PROMPT} tokens cached before it", num_decodes, 2, "", "decodes"),
        at_least("rows of the tree", rows[0], NUM_ROWS, ""),
        at_most(
            "Prompt lab with that tree, opened from another page, drawn",
            float(np.percentile(seconds, 95)),
            1,
            beside,
            "s",
        ),
    ]


def _fill(home: Path) -> int:
    """Sample from one trial until its tree has NUM_ROWS rows; return the decodes that a branch took."""
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(home)}))
    try:
        bench.load_default()
        while bench.model.is_loading:
            time.sleep(0.1)
        engine, _ = bench.model.loaded()
        request = Request(max_tokens=NUM_TOKENS, top_k=20)
        ids = engine.tokenize("Once upon a time there was a king who had a daughter. " * NUM_PROMPT)[:NUM_PROMPT]
        long = _ended(bench.trials.submit_ids(Draft("long", sampling=Sampling(seed=1), request=request), ids))
        before = engine.measure()[0]["num_decodes"]
        _ended(bench.trials.branch(long, AT, [5], num_tokens=1))
        num_decodes = int(engine.measure()[0]["num_decodes"] - before)
        root = _ended(bench.trials.submit(Draft("Once upon a time", sampling=Sampling(seed=1), request=request)))
        for _ in range(NUM_ROWS // MOST_SAMPLES):
            for one in bench.branching.sample(root, AT, MOST_SAMPLES):
                _ended(one)
        last = _ended(bench.trials.branch(root, AT, [5]))
        while not last.is_stored:  # written in their order
            time.sleep(0.1)
        return num_decodes
    finally:
        bench.close()


def _ended(trial: LiveTrial) -> LiveTrial:
    trial.job.result()
    return trial

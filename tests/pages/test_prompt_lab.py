"""The Prompt lab without a browser: what each button starts, what is refused, and that text stays text."""

import math
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from engine.backends.known import KnownEngine
from engine.backends.managed_programs import ManagedServer
from engine.errors import ConfigError
from engine.specs import PoolSpec, Request, Sampling
from engine.workbench import Workbench
from engine.workbench.trials import Draft, Trial
from pages.parts.plain import plain
from pages.parts.sampling_editor import NUMBERS, SAMPLING_LABELS
from pages.parts.snippets import as_python, as_shell
from tests.pages.app import frame
from tests.waiting import until

ROOT = Path(__file__).parents[2]
CONSTRAINED = Sampling(
    grammar='root ::= [a-z ]+ # "quoted"\nx ::= "\'"\n', logit_bias=((300, -math.inf), (301, 1.5), (302, -2.0))
)
HOSTILE = "<script>alert(1)</script> **bold** $x$ :red[no] :smile: `code` [a](b) \u202egnp"


@pytest.fixture(scope="module", autouse=True)
def newest_is_a_completion(bench: Workbench) -> None:
    """A new session opens the newest trial, which other tests of this workbench may have made in a chat."""
    bench.trials.submit(Draft("Once", request=Request(max_tokens=1))).job.result(60)


@pytest.fixture(autouse=True)
def idle(bench: Workbench) -> None:
    """Begin each test when the trials of the one before have ended."""
    until(
        lambda: all(trial.done() for trial in map(bench.trials.trial, (one.id for one in bench.trials.recent(10)))),
        "a trial does not end",
    )


def page(**query: str) -> AppTest:
    at = frame()
    for name, value in query.items():
        at.query_params[name] = value
    return at.run()


def press(at: AppTest, key: str) -> AppTest:
    at.button(key=key).click().run()
    assert not at.exception, at.exception
    assert not at.main.error, at.main.error
    return at


def address(at: AppTest) -> str:
    """The trial that the address names."""
    value = at.query_params.get("trial", "")
    return value if isinstance(value, str) else value[0]


def shown(at: AppTest, bench: Workbench) -> Trial:
    """The trial of the address, once it has ended."""
    trial = bench.trials.trial(address(at))
    until(trial.done, "the trial does not end")
    at.run()
    return trial


def short(at: AppTest, max_tokens: int = 4, seed: int | None = 5) -> AppTest:
    at.number_input(key="lab_max_tokens").set_value(max_tokens)
    at.number_input(key="lab_seed").set_value(seed)
    return at


def captions(at: AppTest) -> str:
    return "\n".join(caption.value for caption in at.main.caption)


def test_run_writes_the_address_and_fills_the_strip(bench: Workbench) -> None:
    at = short(page())
    at.text_area(key="lab_prompt").set_value("The old woman")
    press(at, "do_run")
    trial = shown(at, bench)
    assert trial.draft.prompt == "The old woman"
    assert len(trial.steps) == 4 and trial.seed == 5
    assert at.title[0].value == "Prompt lab"
    assert "Edited since this run." not in captions(at)
    at.text_area(key="lab_prompt").set_value("The old man").run()
    assert "Edited since this run." in captions(at)


def test_the_address_opens_a_trial_with_its_prompt_and_parameters(bench: Workbench) -> None:
    at = short(page(), seed=11)
    at.text_area(key="lab_prompt").set_value("Far away")
    at.number_input(key="lab_top_p").set_value(0.5)
    trial = shown(press(at, "do_run"), bench)
    again = page(trial=trial.id)
    assert again.text_area(key="lab_prompt").value == "Far away"
    assert again.number_input(key="lab_top_p").value == 0.5
    assert again.number_input(key="lab_seed").value == 11
    assert "Edited since this run." not in captions(again)


def test_an_unknown_address_says_so(bench: Workbench) -> None:
    at = page(trial="01a1fab9-91c7-7816-819a-8fcdffdfbaff")
    assert not at.exception
    assert "does not exist" in at.main.error[0].value


def test_step_continue_regenerate_and_score(bench: Workbench) -> None:
    at = short(page(), max_tokens=6)
    at.text_area(key="lab_prompt").set_value("There was once")
    first = shown(press(at, "do_skip_next"), bench)
    assert len(first.steps) == 1
    second = shown(press(at, "do_skip_next"), bench)
    assert len(second.steps) == 2 and second.steps.ids[:1] == first.steps.ids
    assert "may differ from one long run" in at.button(key="do_fast_forward").help
    more = shown(press(at, "do_fast_forward"), bench)
    assert len(more.steps) > 2 and more.steps.ids[:2] == second.steps.ids
    again = shown(press(at, "do_refresh"), bench)
    assert again.seed != more.seed and again.prompt_ids == more.prompt_ids
    scored = shown(press(at, "do_ink_highlighter"), bench)
    assert not len(scored.steps)
    assert "Prompt perplexity" in captions(at)


def test_what_was_only_scored_or_stepped_leaves_length_and_scoring_of_the_editor_alone(bench: Workbench) -> None:
    at = short(page(), max_tokens=6)
    at.number_input(key="lab_top_k").set_value(30)
    for button in ("do_ink_highlighter", "do_skip_next"):
        trial = shown(press(at, button), bench)
        press(at, f"open_{trial.id}")
        fresh = page(trial=trial.id)
        for tab, max_tokens in ((at, 6), (fresh, 128)):
            assert tab.number_input(key="lab_max_tokens").value == max_tokens
            assert not tab.toggle(key="lab_scored").value
            assert tab.number_input(key="lab_top_k").value == 30
            assert "Edited since this run." not in captions(tab)


def test_what_was_only_scored_cannot_be_drawn_again(bench: Workbench) -> None:
    at = short(page())
    shown(press(at, "do_ink_highlighter"), bench)
    assert at.button(key="do_refresh").disabled
    shown(press(at, "do_run"), bench)
    assert not at.button(key="do_refresh").disabled


def test_an_edited_prompt_is_stepped_from_its_own_start(bench: Workbench) -> None:
    at = short(page())
    shown(press(at, "do_run"), bench)
    at.text_area(key="lab_prompt").set_value("A new beginning")
    stepped = shown(press(at, "do_skip_next"), bench)
    assert stepped.draft.prompt == "A new beginning" and len(stepped.steps) == 1


def wrong_value(name: str) -> float:
    """A value below what any of these parameters may have, of its type."""
    value: float = type(getattr(Sampling, name))(-1000)
    return value


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("lab_top_p", 7.0, "Top-p"),
        ("lab_repeat_penalty", 0.0, "Repeat"),
        ("lab_temperature", 500.0, "Temperature"),
        ("lab_temperature", -0.1, "Temperature"),
        ("lab_max_tokens", -16, "Max tokens"),
        ("lab_seed", -1, "Seed"),
        ("lab_recorded", 5000, "Candidates recorded"),
        ("lab_recorded", 0, "Candidates recorded"),
        *((f"lab_{name}", wrong_value(name), SAMPLING_LABELS[name]) for name in random.Random(4).sample(NUMBERS, 4)),
    ],
)
def test_a_parameter_out_of_range_is_named_in_place_and_nothing_runs(
    bench: Workbench, key: str, value: float, named: str
) -> None:
    at = page()
    before = address(at)
    field = at.number_input(key=key).set_value(value)
    assert field.min is field.max is None, "a browser keeps back what lies beyond the bounds"
    at.button(key="do_run").click().run()
    assert [error.value.startswith(plain(f"{named} = {value}: ")) for error in at.main.error] == [True]
    assert plain(f"Fix {named} to copy this as code.") in [caption.value for caption in at.main.caption]
    assert address(at) == before
    at.number_input(key=key).set_value({"lab_seed": 1, "lab_max_tokens": 4}.get(key, 1.0 if "." in str(value) else 1))
    assert not at.run().main.error


def test_an_error_is_gone_once_something_else_is_asked(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    at = short(page())
    monkeypatch.setattr(bench.trials, "submit", refuse)
    at.button(key="do_run").click().run()
    assert [error.value for error in at.main.error] == [plain("The queue is full: wait a moment.")]
    assert at.run().main.error, "until something changes it stays"
    at.number_input(key="lab_temperature").set_value(500.0).run()
    assert [plain("Temperature = 500.0") in error.value for error in at.main.error] == [True]
    at.number_input(key="lab_temperature").set_value(0.5).run()
    assert not at.main.error


def refuse(_draft: object) -> None:
    raise ConfigError("The queue is full: wait a moment.")


def test_the_recorded_sample_leaves_the_seed_empty(bench: Workbench) -> None:
    trial = bench.trials.recorded()
    assert trial is not None and trial.draft.sampling.seed is not None
    at = page(trial=trial.id)
    assert at.number_input(key="lab_seed").value is None
    assert "Edited since this run." not in captions(at)
    assert "Press Run to generate yours." in captions(at)


def test_a_prompt_that_is_too_long_is_reported_in_the_words_of_the_picker(bench: Workbench) -> None:
    at = short(page())
    at.text_area(key="lab_prompt").set_value("word " * 2000)
    trial = shown(press(at, "do_run"), bench)
    assert "a larger context (n_ctx)" in str(trial.error)


def test_delete_with_undo(bench: Workbench) -> None:
    at = short(page())
    trial = shown(press(at, "do_run"), bench)
    press(at, "lab_delete")
    assert bench.trials.watch(trial.id) is None
    assert address(at) != trial.id
    press(at, "lab_undo")
    assert bench.trials.watch(trial.id) is not None
    assert address(at) == trial.id


def test_what_another_process_was_given_is_not_deleted_here(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    at = short(page())
    trial = shown(press(at, "do_run"), bench)
    monkeypatch.setattr(bench.kept, "history", None)
    monkeypatch.setattr(bench.kept, "is_handed_over", lambda id: id == trial.id)
    at.button(key="lab_delete").click().run()
    assert not at.exception, at.exception
    assert "delete it there" in at.main.error[0].value
    assert address(at) == trial.id


def test_stop_strings_are_typed_with_escapes(bench: Workbench) -> None:
    at = short(page())
    at.text_area(key="lab_stop").set_value("\\n\\n\nThe end\\\\n")
    trial = shown(press(at, "do_run"), bench)
    assert trial.draft.request.stop == ("\n\n", "The end\\n")
    assert page(trial=trial.id).text_area(key="lab_stop").value == "\\n\\n\nThe end\\\\n"


def test_hostile_text_stays_text(bench: Workbench) -> None:
    at = short(page())
    at.text_area(key="lab_prompt").set_value(HOSTILE)
    trial = shown(press(at, "do_run"), bench)
    assert trial.draft.prompt == HOSTILE
    assert not at.exception
    label = plain(HOSTILE)
    assert "<script>" not in label and "\u202e" not in label and "**" not in label.replace("\\*", "")


@pytest.mark.parametrize("sampling", [Sampling(top_k=20), CONSTRAINED, Sampling(json_schema='{"enum": ["a\\n\'b"]}')])
def test_copied_python_gives_the_same_text(bench: Workbench, sampling: Sampling) -> None:
    draft = Draft(
        'Once upon\n a "time"', sampling=replace(sampling, seed=3), request=Request(max_tokens=12, reuse_prefix=False)
    )
    pool, _ = bench.model.loaded()
    trial = bench.trials.submit(draft)
    text = trial.job.result(60).text
    program = as_python(draft, pool.model, pool.spec)
    made = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout == text


def test_copied_python_runs_the_model_of_a_server_that_was_started_here_in_a_pool() -> None:
    spec = PoolSpec(n_ctx=256, threads=1)
    managed = ManagedServer("llama-server", Path("/models/a.gguf"), spec)
    program = as_python(Draft("Once"), "/models/a.gguf", spec, managed)
    assert program == as_python(Draft("Once"), "/models/a.gguf", spec)
    known = KnownEngine(name="desk", url="http://localhost:8080")
    assert "connect('http://localhost:8080')" in as_python(Draft("Once"), known.url, spec, known)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling(), CONSTRAINED])
def test_copied_shell_gives_the_same_text(bench: Workbench, sampling: Sampling) -> None:
    draft = Draft(
        "Once upon\n a 'time'",
        sampling=replace(sampling, seed=3, top_k=20, min_p=0.1),
        request=Request(max_tokens=12, top_k=4, reuse_prefix=False),
    )
    pool, _ = bench.model.loaded()
    text = bench.trials.submit(draft).job.result(60).text
    line = as_shell(draft, pool.model, PoolSpec(n_ctx=pool.spec.n_ctx)).replace("python ", f"{sys.executable} ", 1)
    made = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 0, made.stderr
    assert made.stdout.strip() == text.strip()


def test_presets_set_the_sampling_alone_and_reset_restores_it(bench: Workbench) -> None:
    at = short(page())
    at.number_input(key="lab_dry_multiplier").set_value(0.5).run()
    at.button(key="lab_preset_Unfiltered").click().run()
    shown = {name: at.number_input(key=f"lab_{name}").value for name in ("temperature", "top_k", "top_p", "min_p")}
    assert shown == {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
    assert at.number_input(key="lab_dry_multiplier").value == 0
    at.button(key="lab_preset_Greedy").click().run()
    assert at.number_input(key="lab_temperature").value == 0
    at.button(key="lab_preset_Reset").click().run()
    assert at.number_input(key="lab_temperature").value == Sampling().temperature
    assert at.number_input(key="lab_top_k").value == Sampling().top_k
    assert at.number_input(key="lab_seed").value == 5

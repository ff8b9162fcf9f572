"""The pool as its callers use it: streams, order, limits, reuse, errors."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine import (
    ConfigError,
    EngineError,
    Job,
    JobTimeout,
    Pool,
    PoolClosed,
    PromptTooLong,
    QueueFull,
    Sampling,
    complete,
)
from engine.specs import MAX_RECORDED
from tests.conftest import ENDLESS
from tests.waiting import until

PROMPT = "The old woman said to the wolf"


def test_a_late_reader_gets_every_step_from_the_start(pool: Pool) -> None:
    job = pool.submit(PROMPT, ENDLESS, max_tokens=12, top_k=3)
    live = [step.id for step in job]
    assert live == [step.id for step in job] == job.result(60).ids
    assert len(live) == 12


def test_without_inspection_steps_have_no_figures(pool: Pool) -> None:
    step = pool.submit(PROMPT, ENDLESS, max_tokens=1).result(60).steps[0]
    assert (step.logprob, step.rank, step.entropy, step.p_final, step.top) == (None, None, None, None, [])


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=1),
        Sampling(seed=1, top_k=0, min_p=0.05, top_n_sigma=1.5),
        Sampling(seed=1, temperature=0),
        Sampling(seed=1, mirostat=1),
        Sampling(seed=1, xtc_probability=0.5, xtc_threshold=0.05, repeat_penalty=1.2, dry_multiplier=0.5),
        Sampling(seed=1, grammar="root ::= [A-Za-z ]+", logit_bias=((300, float("-inf")), (301, 1.5))),
    ],
)
def test_recorded_stages_change_no_token_and_end_with_the_candidates_of_the_draw(
    pool: Pool, sampling: Sampling
) -> None:
    with_stages = pool.submit("Once upon a time", sampling, max_tokens=12, top_k=16, stages=True)
    without = pool.submit("Once upon a time", sampling, max_tokens=12, top_k=16)
    steps = list(with_stages.result(60).steps)
    assert [step.id for step in steps] == without.result(60).ids
    assert not any(step.stages for step in without.result().steps)
    for step in steps:
        assert step.num_kept is not None and 1 <= step.num_kept <= step.stages[-1].kept
        kept = [len(pool.vocabulary), *(stage.kept for stage in step.stages)]
        assert kept == sorted(kept, reverse=True)
        cut = [token for stage in step.stages for token in stage.cut]
        assert len(cut) == len(set(cut)) and step.id not in cut
        assert {candidate.id for candidate in step.top if candidate.p_final > 0}.isdisjoint(cut)


def test_stages_of_many_candidates_do_not_keep_those_of_the_row_before(pool: Pool) -> None:
    pool.submit("Once upon a time", Sampling(seed=1, top_k=5), max_tokens=4, top_k=MAX_RECORDED, stages=True).result(60)
    uncut = Sampling(seed=1, top_k=0, top_p=1, min_p=0)
    done = pool.submit("Once upon a time", uncut, max_tokens=4, top_k=MAX_RECORDED, stages=True).result(60)
    assert done.steps.stage_columns is not None
    assert (done.steps.top_ids >= 0).all() and not done.steps.stage_columns.cut.any()


def test_the_end_of_sequence_is_a_step(pool: Pool) -> None:
    done = pool.submit(PROMPT, Sampling(logit_bias=((2, 100.0),)), max_tokens=9, top_k=1).result(60)
    assert [step.id for step in done.steps] == [2]
    assert (done.text, done.finish_reason, done.steps[0].bytes) == ("", "stop", b"")


def test_text_ends_before_the_stop_string_and_steps_keep_it(pool: Pool) -> None:
    whole = pool.submit(PROMPT, ENDLESS, max_tokens=40, reuse_prefix=False).result(60)
    stop = whole.text[20:24]
    done = pool.submit(PROMPT, ENDLESS, max_tokens=40, reuse_prefix=False, stop=stop).result(60)
    assert done.finish_reason == "stop"
    assert done.text == whole.text[: whole.text.index(stop)]
    assert stop in done.steps.text


def test_the_seed_in_use_is_reported_and_reproduces(pool: Pool) -> None:
    done = pool.submit(PROMPT, Sampling(), max_tokens=12, reuse_prefix=False).result(60)
    again = pool.submit(PROMPT, Sampling(seed=done.seed), max_tokens=12, reuse_prefix=False).result(60)
    assert again.ids == done.ids


def test_a_shared_prefix_is_cached_and_counted(pool: Pool) -> None:
    prompt = pool.tokenize("A tale of long ago. " * 12)
    pool.submit(prompt, ENDLESS, max_tokens=1).result(60)
    again = pool.submit(prompt, ENDLESS, max_tokens=1).result(60)
    assert again.timings.num_cached == len(prompt) - 1
    assert pool.submit(prompt, ENDLESS, max_tokens=1, reuse_prefix=False).result(60).timings.num_cached == 0


def test_a_prefix_copied_from_a_running_neighbour_gives_the_same_greedy_text(pool: Pool) -> None:
    greedy = Sampling(temperature=0, logit_bias=((2, float("-inf")),))
    prompt = pool.tokenize("The princess and the goblin went down into the mine. " * 6)
    alone = pool.submit(prompt, greedy, max_tokens=8, reuse_prefix=False).result(60)
    neighbour = pool.submit(prompt, ENDLESS, max_tokens=200)
    next(iter(neighbour))
    copied = pool.submit(prompt, greedy, max_tokens=8).result(60)
    assert not neighbour.done()
    neighbour.cancel()
    assert copied.timings.num_cached >= 32
    assert copied.ids == alone.ids


def test_map_keeps_the_order(pool: Pool) -> None:
    prompts = [f"Story {n}:" for n in range(10)]
    greedy = Sampling(temperature=0)
    together = [done.prompt_ids for done in pool.map(prompts, greedy, max_tokens=4)]
    assert together == [tuple(pool.tokenize(prompt)) for prompt in prompts]


def test_map_gives_what_is_done_while_later_prompts_wait(story_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITBENCH_MAX_QUEUE", "2")
    with Pool(story_model, threads=1, parallel=1, n_ctx=256) as small:
        taken = []

        def prompts() -> Iterator[str]:
            for number in range(8):
                taken.append(number)
                if number == 2:
                    small.pause()  # the first two are with the worker, all others wait
                yield f"Story {number}:"

        results = small.map(prompts(), Sampling(temperature=0), max_tokens=2)
        first = [next(results), next(results)]
        assert len(taken) < 8
        small.resume()
        assert len([*first, *results]) == 8


def test_map_waits_where_others_fill_the_queue(story_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITBENCH_MAX_QUEUE", "1")
    with Pool(story_model, threads=1, parallel=1, n_ctx=256) as small:
        mappers = [small.map([f"{n}"] * 6, Sampling(seed=n), max_tokens=1) for n in range(4)]
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(lambda mapper: len(list(mapper)), mappers)) == [6] * 4


def test_a_full_context_is_scored_to_its_last_token(story_model: Path) -> None:
    with Pool(story_model, threads=1, parallel=1, n_ctx=256) as small:
        done = small.submit("Once", ENDLESS, max_tokens=999).result(60)
        ids = [*done.prompt_ids, *done.ids]
        assert len(ids) == small.n_ctx + 1

        def scores(num_ids: int) -> list[float]:
            again = small.submit(
                ids[:num_ids], max_tokens=0, top_k=1, prompt_logprobs=True, reuse_prefix=False
            ).result(60)  # fmt: skip
            assert [step.id for step in again.prompt_steps] == ids[:num_ids]
            return [step.logprob for step in again.prompt_steps[1:] if step.logprob is not None]

        full = scores(len(ids))
        assert len(full) == len(ids) - 1
        assert full[:-1] == pytest.approx(scores(len(ids) - 1), abs=1e-3)
        with pytest.raises(PromptTooLong, match="257"):
            small.submit([*ids, 300], max_tokens=0, prompt_logprobs=True).result(60)
        with pytest.raises(PromptTooLong, match="256"):
            small.submit(ids, max_tokens=1).result(60)


def test_more_jobs_than_sequences_all_finish(pool: Pool) -> None:
    jobs = [pool.submit(PROMPT, Sampling(seed=n), max_tokens=8, top_k=2) for n in range(13)]
    assert max(job.queue_position for job in jobs) > 0
    assert [len(job.result(60).ids) <= 8 for job in jobs] == [True] * 13


def test_cancel_keeps_what_there_is(pool: Pool) -> None:
    job = pool.submit(PROMPT, ENDLESS, max_tokens=400, top_k=1)
    steps = iter(job)
    next(steps)
    assert job.cancel()
    done = job.result(60)
    assert done.finish_reason == "cancelled"
    assert 1 <= len(done.steps) < 400
    assert not job.cancel()


def test_cancel_before_the_start(pool: Pool) -> None:
    jobs = [pool.submit(PROMPT, ENDLESS, max_tokens=100) for _ in range(12)]
    last = jobs[-1]
    assert last.cancel()
    assert last.result(60).finish_reason == "cancelled"
    for job in jobs:
        job.cancel()


def test_result_times_out_and_the_job_goes_on(pool: Pool) -> None:
    job = pool.submit(PROMPT, ENDLESS, max_tokens=200)
    with pytest.raises(JobTimeout) as caught:
        job.result(timeout=0.0)
    assert isinstance(caught.value, TimeoutError)
    job.cancel()
    assert job.result(60).steps is not None


def test_done_callbacks_run_once_early_or_late(pool: Pool) -> None:
    job = pool.submit(PROMPT, ENDLESS, max_tokens=4)
    called: list[str] = []
    ready = threading.Event()

    def note(done: Job) -> None:
        called.append(done.id)
        ready.set()

    job.add_done_callback(note)
    assert ready.wait(60)
    job.add_done_callback(lambda done: called.append(done.id))
    assert called == [job.id, job.id]


@pytest.mark.parametrize(
    ("prompt", "options", "error", "words"),
    [
        ("word " * 600, {}, PromptTooLong, "512"),
        ("日本" * 500_000, {}, PromptTooLong, "at least .* 512"),
        ([], {}, ConfigError, "empty"),
        ([1, 99_999], {}, ConfigError, "4,095"),
        ("a", {"generated": 50}, ConfigError, "generated"),
    ],
)
def test_what_is_wrong_with_a_job_is_said_by_the_job(
    pool: Pool, prompt: object, options: dict[str, object], error: type[EngineError], words: str
) -> None:
    job = pool.submit(prompt, **options)  # type: ignore[arg-type]
    with pytest.raises(error, match=words):
        job.result(60)
    with pytest.raises(error):
        list(job)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"top_k": 5000}, "top_k"),
        ({"stop": ["", "a"]}, "stop"),
        ({"sampling": Sampling(grammar="root ::= (")}, "grammar"),
        ({"sampling": Sampling(json_schema="{")}, "json_schema"),
    ],
)
def test_parameters_out_of_range_are_refused_at_submit(pool: Pool, wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        pool.submit(PROMPT, **wrong)  # type: ignore[arg-type]


def test_text_that_is_no_unicode_is_refused_before_it_reaches_a_worker(pool: Pool) -> None:
    half = "a\ud800"
    asked: list[Callable[[], object]] = [
        lambda: pool.submit(half),
        lambda: pool.submit("a", stop=half),
        lambda: pool.submit("a", Sampling(grammar=half)),
        lambda: pool.tokenize(half),
        lambda: pool.render_chat([{"role": "user", "content": half}]),
    ]
    for ask in asked:
        with pytest.raises(ConfigError, match="character 2 is half of a surrogate pair"):
            ask()
    assert pool.tokenize("a")


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean temperature"):
        Sampling(temprature=1)  # type: ignore[call-arg]


def test_the_context_is_the_limit_of_a_job(pool: Pool) -> None:
    prompt = pool.tokenize("word " * 100)
    done = pool.submit(prompt, ENDLESS, max_tokens=10_000).result(120)
    assert done.finish_reason == "length"
    assert len(prompt) + len(done.ids) == pool.n_ctx + 1


def test_a_full_queue_is_said_and_map_waits(story_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITBENCH_MAX_QUEUE", "2")
    with Pool(story_model, parallel=1, n_ctx=256) as small:
        jobs = [small.submit(PROMPT, ENDLESS, max_tokens=200) for _ in range(4)]
        with pytest.raises(QueueFull, match="wait"):
            small.submit(PROMPT)
        for job in jobs:
            job.cancel()
        assert len(list(small.map(["a"] * 8, max_tokens=1))) == 8


def test_complete_takes_one_or_many(story_model: Path) -> None:
    one = complete("Once", Sampling(seed=1), model=story_model, max_tokens=3, n_ctx=256)
    many = complete(["Once", "Twice"], Sampling(seed=1), model=story_model, max_tokens=3, n_ctx=256)
    assert one.ids == many[0].ids
    assert len(many) == 2


def test_a_closed_pool_says_so(story_model: Path) -> None:
    closed = Pool(story_model, parallel=1, n_ctx=256)
    job = closed.submit(PROMPT, ENDLESS, max_tokens=200)
    closed.close()
    closed.close()
    with pytest.raises(PoolClosed):
        job.result(60)
    with pytest.raises(PoolClosed):
        closed.submit(PROMPT)


def test_two_instances_share_the_work_and_keep_prefixes_together(story_model: Path) -> None:
    with Pool(story_model, instances=2, threads=1, parallel=2, n_ctx=512, share_weights=True) as pair:
        prompts = [pair.tokenize(f"Tale number {n}. " * 12) for n in range(2)]
        for prompt in prompts:
            pair.submit(prompt, ENDLESS, max_tokens=1).result(60)
        for prompt in prompts * 3:
            assert pair.submit([*prompt, 300], ENDLESS, max_tokens=1).result(60).timings.num_cached == len(prompt)
        with pair.held():
            jobs = [pair.submit(f"{n}", ENDLESS, max_tokens=60) for n in range(4)]
            until(
                lambda: [one.num_waiting + one.num_running for one in pair.workers()] == [2, 2],
                "they are not shared out",
            )
        for job in jobs:
            job.cancel()


def test_repacked_and_shared_weights_agree(story_model: Path) -> None:
    texts = []
    for share in (True, False):
        with Pool(story_model, parallel=1, n_ctx=256, share_weights=share) as one:
            done = one.submit(PROMPT, max_tokens=0, prompt_logprobs=True).result(60)
            texts.append([step.logprob for step in done.prompt_steps[1:]])
    assert texts[0] == pytest.approx(texts[1], abs=0.25)


def test_a_chat_is_the_reply_to_the_rendered_messages(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "chat_template", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    messages = [{"role": "system", "content": "Tell stories."}, {"role": "user", "content": "Once"}]
    done = pool.chat(messages, Sampling(temperature=0), max_tokens=4).result()
    text, ids = pool.render_chat(messages)
    assert text == "system: Tell stories.\nuser: Once\n"
    assert list(done.prompt_ids) == ids
    assert done.ids == pool.submit(ids, Sampling(temperature=0), max_tokens=4).result().ids

"""Beam search on an engine: the candidates of all beams at once, of which only the newest token is computed."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import wait

from engine.comparing.beams import Beams, BeamSearch, BeamSpec
from engine.comparing.probable import Candidates
from engine.errors import ConfigError, PromptTooLong, ServerFailed
from engine.jobs import Job
from engine.protocol import Capabilities, Engine
from engine.specs import Origin, Sampling

GREEDY = Sampling(temperature=0.0)
POLL_S = 0.2


def beam_problem(can: Capabilities, num_candidates: int = 1) -> str:
    """Return why an engine with these capabilities cannot run a beam search, "" where it can.

    num_candidates: how many candidates of each token it takes.
    """
    if not can.has_ids:
        return "this engine takes no token ids, so a beam cannot be continued token by token"
    if can.logprobs_of != "model":
        return "this engine does not report log-probabilities of the model itself"
    if can.candidates_max < num_candidates:
        return f"this engine reports {can.candidates_max:,} candidates of a token, and {num_candidates:,} are needed"
    return ""


def find_beams(
    engine: Engine,
    prompt: Sequence[int],
    spec: BeamSpec,
    *,
    origin: Origin | None = None,
    on_progress: Callable[[BeamSearch], object] = lambda _search: None,
) -> Beams:
    """Return the best sequences that follow `prompt`, token ids, by beam search.

    on_progress is called several times a second; what it raises ends the search. An engine with fewer sequences than
    there are beams computes tokens again, and so may one with other requests at the same time: `Beams.num_computed`
    against `num_least`. A sequence is complete at a token that `engine.vocabulary` knows to end the text: on a
    llama-server that is its end token alone. Raises ConfigError for an engine that cannot do this (see `beam_problem`),
    PromptTooLong where prompt and max_new_tokens exceed the context, ServerFailed where a server returns no token, and
    what the engine raises.
    """
    _check(engine, prompt, spec)
    search, num_computed, num_least = BeamSearch(spec), 0, len(prompt)
    k = _num_candidates(engine, spec)
    while not search.is_over:
        prefixes = search.prefixes
        jobs = dict[int, Job]()
        try:
            with engine.held():  # placed and decoded together, so that none takes the place of what another continues
                for number in _in_place_first(prefixes):
                    ids = [*prompt, *prefixes[number]]
                    jobs[number] = engine.submit(ids, GREEDY, max_tokens=1, top_k=k, origin=origin)
            while wait(jobs.values(), POLL_S).not_done:
                on_progress(search)
            found = [_candidates(engine, jobs[number]) for number in range(len(prefixes))]
        finally:
            for job in jobs.values():
                job.cancel()
        num_computed += sum(job.timings.num_prompt - job.timings.num_cached for job in jobs.values())
        num_least += len(prefixes) if search.length else 0
        search.expand(found)
        on_progress(search)
    return search.result(engine.vocabulary, num_computed=num_computed, num_least=num_least)


def _check(engine: Engine, prompt: Sequence[int], spec: BeamSpec) -> None:
    can = engine.capabilities
    problem = beam_problem(can, _num_candidates(engine, spec))
    if problem:
        raise ConfigError(f"no beam search: {problem}")
    if not can.is_exact and not engine.vocabulary.end_tokens:
        raise ConfigError("no beam search: this engine does not report which token ends a text")
    if not prompt:
        raise ConfigError("the prompt is empty: this model needs at least one token to start from")
    most = can.n_ctx - spec.max_new_tokens  # with all its tokens, as the best sequence becomes the prompt of a trial
    if can.n_ctx and len(prompt) > most:
        raise PromptTooLong(
            f"the prompt has {len(prompt):,} tokens, and with max_new_tokens = {spec.max_new_tokens:,} at most "
            f"{max(most, 0):,} fit into the context of {can.n_ctx:,}: shorten it, or raise n_ctx"
        )


def _num_candidates(engine: Engine, spec: BeamSpec) -> int:
    return BeamSearch.num_candidates(spec, len(engine.vocabulary.end_tokens))


def _in_place_first(prefixes: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the order in which prefixes are submitted: first one for each beam that goes on, which takes its place in
    the KV cache, then those that are copied, to the places of beams that were pruned."""
    seen = set[tuple[int, ...]]()
    first, copied = list[int](), list[int]()
    for number, ids in enumerate(prefixes):
        (copied if ids[:-1] in seen else first).append(number)
        seen.add(ids[:-1])
    return [*first, *copied]


def _candidates(engine: Engine, job: Job) -> Candidates:
    steps = job.result().steps
    if not steps:
        raise ServerFailed("the server returned no token to follow a beam")
    top = [one for one in steps[0].top_logprobs if one[1] > -math.inf]
    is_end = engine.vocabulary.is_end  # that of a job knows only its own tokens
    return Candidates([id for id, _ in top], [logprob for _, logprob in top], [is_end(id) for id, _ in top])

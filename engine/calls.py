"""One-line calls: open a pool, use it and close it."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from engine.backends.connecting import connect_to
from engine.cluster.specs import ClusterSpec
from engine.comparing.beam_search import find_beams
from engine.comparing.beams import BeamOptions, Beams, BeamSpec
from engine.embedding.embedder import warn_of_cut
from engine.embedding.specs import EmbedOptions, EmbedSpec
from engine.errors import ConfigError
from engine.exchange.answer_files import AnswerFile
from engine.exchange.answering import Answering, FileSummary
from engine.exchange.prompt_files import PromptFile
from engine.map_progress import OnProgress
from engine.models.identity import model_hash
from engine.models.library import embedded_model
from engine.opening import open_embedder
from engine.pool.pool import Pool
from engine.results import Completion
from engine.specs import CompleteOptions, PoolOptions, RequestOptions, Sampling, given_prompt
from engine.step_parts import Floats
from engine.validation import refusing

if TYPE_CHECKING:
    from engine.backends.openai_server import ServerEngine


class BeamSearchOptions(PoolOptions, BeamOptions, total=False):
    """The parameters of PoolSpec and of BeamSpec, as keywords of `beam_search`."""


@overload
def complete(  # type: ignore[overload-overlap]  # a str is one prompt, not an iterable of prompts
    prompts: str,
    sampling: Sampling | None = None,
    *,
    model: str | Path | None = None,
    **options: Unpack[CompleteOptions],
) -> Completion: ...
@overload
def complete(
    prompts: Iterable[str],
    sampling: Sampling | None = None,
    *,
    model: str | Path | None = None,
    **options: Unpack[CompleteOptions],
) -> list[Completion]: ...
@refusing
def complete(
    prompts: str | Iterable[str],
    sampling: Sampling | None = None,
    *,
    model: str | Path | None = None,
    **options: Unpack[CompleteOptions],
) -> Completion | list[Completion]:
    """Complete one prompt (one Completion) or several (a list in the same order).

    PoolSpec and Request document the other parameters. model None: the demonstration model that ships. parallel: one
    sequence per prompt unless given, at most eight. Raises EngineError.
    """
    texts = prompts if isinstance(prompts, str) else list(prompts)
    given: dict[str, Any] = {"parallel": 1 if isinstance(texts, str) else max(1, min(8, len(texts))), **options}
    asked: dict[str, Any] = {name: given.pop(name) for name in RequestOptions.__annotations__ if name in given}
    with Pool(model or embedded_model(), **given) as opened:
        if isinstance(texts, str):
            return opened.submit(texts, sampling, **asked).result()
        return list(opened.map(texts, sampling, **asked))


@refusing
def complete_file(
    prompts: str | Path,
    out: str | Path,
    sampling: Sampling | None = None,
    *,
    model: str | Path | None = None,
    pool: Pool | None = None,
    cluster: str | ClusterSpec = "",
    chat: bool = False,
    system: str = "",
    progress: OnProgress = False,
    **options: Unpack[CompleteOptions],
) -> FileSummary:
    """Complete the prompts of a file, and append a JSON line for each to `out`, in their order.

    prompts: JSON lines (`prompt`, or `messages` of a chat, and an `id` where wanted), or plain lines; "-" is standard
    input. The same call again continues where the last one ended, however it ended; docs/formats.md has both formats.
    pool: an open one to use instead of opening `model`. cluster: as in Pool. chat: each text is a person's message,
    after `system` where given. progress: as in Pool.map. PoolSpec and Request document the other parameters. A prompt
    that fails has its error in its line. Raises EngineError, ConfigError where `out` was begun with other prompts,
    settings or model.
    """
    given: dict[str, Any] = dict(options)
    asked: Any = {name: given.pop(name) for name in RequestOptions.__annotations__ if name in given}
    given |= {"cluster": cluster} if cluster else {}
    if pool is not None and (given or model is not None):
        raise ConfigError(f"{next(iter(given), 'model')} is a parameter of the pool that is given: open it with that")
    with (
        PromptFile(prompts) as read,
        AnswerFile(out, read) as answers,
        nullcontext(pool) if pool is not None else Pool(model or embedded_model(), **given) as opened,
    ):
        return Answering(
            opened,
            read,
            answers,
            sampling=sampling or Sampling(),
            options=asked,
            model=opened.file.name,
            model_sha256=model_hash(opened.file.path),
            is_chat=chat or bool(system),
            system=system,
        ).answer(progress)


@refusing
def beam_search(
    prompt: str | Sequence[int],
    *,
    model: str | Path | None = None,
    pool: "Pool | ServerEngine | None" = None,
    **options: Unpack[BeamSearchOptions],
) -> Beams:
    """Return the best sequences that follow a prompt, text or token ids, as transformers' generate finds them with
    num_beams and without sampling.

    BeamSpec and PoolSpec document the other parameters. model None: the demonstration model that ships. pool: an open
    one to use instead of opening `model`, or an engine of `connect` that reports the model's own log-probabilities and
    takes token ids; with fewer sequences than beams, tokens are computed again. Raises EngineError, ConfigError for an
    engine that cannot do this.
    """
    given: dict[str, Any] = dict(options)
    spec = BeamSpec(**{name: given.pop(name) for name in BeamOptions.__annotations__ if name in given})
    if pool is not None and (given or model is not None):
        raise ConfigError(f"{next(iter(given), 'model')} is a parameter of the pool that is given: open it with that")
    of_pool = {"parallel": spec.num_beams, **given}
    with nullcontext(pool) if pool is not None else Pool(model or embedded_model(), **of_pool) as opened:
        ids = opened.tokenize(prompt) if isinstance(prompt, str) else given_prompt(prompt)
        return find_beams(opened, [*map(int, ids)], spec)


@refusing
def embed(texts: str | Iterable[str], *, model: str | Path | None = None, **options: Unpack[EmbedOptions]) -> Floats:
    """Return unit vectors of one text (dim,) or several (n, dim), float32; EmbedSpec documents the other parameters.

    model: folder or name; None: the all-MiniLM-L6-v2 that is installed with the workbench. Loading takes seconds: open
    an EmbeddingPool for repeated use; the result of its submit says which texts were truncated. Warns (UserWarning)
    where texts exceed the model's maximum length, as they are truncated to it. backend="external:NAME" sends the texts
    to the external engine of that name. Raises EngineError.
    """
    with open_embedder(EmbedSpec(model=str(model or ""), **options)) as opened:
        done = opened.compute([texts] if isinstance(texts, str) else texts)
        warn_of_cut(done, opened.max_tokens, stacklevel=4)  # at the caller of `refusing`
    vectors: Floats = done.vectors[0] if isinstance(texts, str) else done.vectors
    return vectors


@refusing
def connect(
    url: str, model: str | None = None, *, api_key_env: str = "", num_sequences: int | None = None
) -> "ServerEngine":
    """Connect to a model on a server with an OpenAI-compatible API: an engine with the methods of Pool.

    url: its address, with or without /v1. model: the name of one of its models, by default its first. api_key_env: name
    of the environment variable that has the key; a key is never part of the address. num_sequences: requests that run
    at once, by default as many as the server says, else 8. `capabilities` has what the server tells of a token; figures
    that it does not tell are None. Raises ConfigError, ServerFailed where it cannot be reached or used.
    """
    return connect_to(url, model or "", api_key_env, num_sequences)

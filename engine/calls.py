"""One-line calls: open a pool, use it and close it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Unpack, overload

from engine.embedding.pool import EmbeddingPool, warn_of_cut
from engine.embedding.specs import EmbedOptions, EmbedSpec
from engine.models.library import embedded_model
from engine.pool.pool import Pool
from engine.results import Completion, Floats
from engine.specs import CompleteOptions, RequestOptions, Sampling
from engine.validation import refusing


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
def embed(texts: str | Iterable[str], *, model: str | Path | None = None, **options: Unpack[EmbedOptions]) -> Floats:
    """Return unit vectors of one text (dim,) or several (n, dim), float32; EmbedSpec documents the other parameters.

    model: folder or name; None: the all-MiniLM-L6-v2 that is installed with the workbench. Loading takes seconds: open
    an EmbeddingPool for repeated use; the result of its submit says which texts were truncated. Warns (UserWarning)
    where texts exceed the model's maximum length, as they are truncated to it. Raises EngineError.
    """
    with EmbeddingPool(EmbedSpec(model=str(model or ""), **options)) as opened:
        done = opened.compute([texts] if isinstance(texts, str) else texts)
        warn_of_cut(done, opened.max_tokens, stacklevel=4)  # at the caller of `refusing`
    vectors: Floats = done.vectors[0] if isinstance(texts, str) else done.vectors
    return vectors

"""One-line calls: open a pool, use it and close it."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, overload

from engine.embedding.pool import EmbeddingPool
from engine.embedding.specs import EmbedSpec
from engine.models.library import embedded_model
from engine.pool.pool import Pool
from engine.results import Completion, Floats
from engine.specs import RequestOptions, Sampling


@overload
def complete(
    prompts: str, sampling: Sampling | None = None, *, model: str | Path | None = None, **options: Any
) -> Completion: ...
@overload
def complete(
    prompts: Iterable[str], sampling: Sampling | None = None, *, model: str | Path | None = None, **options: Any
) -> list[Completion]: ...
def complete(
    prompts: str | Iterable[str],
    sampling: Sampling | None = None,
    *,
    model: str | Path | None = None,
    **options: Any,
) -> Completion | list[Completion]:
    """Complete one prompt (one Completion) or several (a list in the same order).

    `options` takes the parameters of Request but `generated`, and those of Pool. model None: the demonstration model
    that ships. The number of sequences defaults to one per prompt, at most eight. Raises EngineError.
    """
    texts = prompts if isinstance(prompts, str) else list(prompts)
    asked: dict[str, Any] = {name: options.pop(name) for name in RequestOptions.__annotations__ if name in options}
    options = {"parallel": 1 if isinstance(texts, str) else max(1, min(8, len(texts)))} | options
    with Pool(model or embedded_model(), **options) as opened:
        if isinstance(texts, str):
            return opened.submit(texts, sampling, **asked).result()
        return list(opened.map(texts, sampling, **asked))


def embed(texts: str | Iterable[str], *, model: str | Path | None = None, **options: Any) -> Floats:
    """Return unit vectors of one text (dim,) or several (n, dim), float32; `options` are the parameters of EmbedSpec.

    model: folder or name; None: the all-MiniLM-L6-v2 that is installed with the workbench. Loading takes seconds: open
    an EmbeddingPool for repeated use; the result of its submit says which texts were truncated. Warns (UserWarning)
    where texts exceed the model's maximum length, as they are truncated to it. Raises EngineError.
    """
    with EmbeddingPool(EmbedSpec(model=str(model or ""), **options)) as opened:
        done = opened.compute([texts] if isinstance(texts, str) else texts)
        num_texts, most = len(done.vectors), opened.max_tokens
    if done.num_cut:
        warnings.warn(
            f"{done.num_cut:,} of {num_texts:,} texts exceed the {most:,} tokens that this model reads and were "
            "truncated: split them",
            stacklevel=2,
        )
    vectors: Floats = done.vectors[0] if isinstance(texts, str) else done.vectors
    return vectors

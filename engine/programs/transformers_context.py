"""Inference context over PyTorch and transformers: decodes batches of a model, for the Runner of llama.cpp.

Only architectures that transformers has itself are loaded, and only from safetensors and GGUF files.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers import AutoModelForCausalLM

from engine.errors import ModelError
from engine.llama.context import OK, Chunk
from engine.llama.distribution import Row, row_of
from engine.programs.gguf_network import load_gguf_network
from engine.programs.sequence_cache import SequenceCache, Step, mask_of, step_of
from engine.specs import DType, PoolSpec

_TYPES: dict[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_MOST_KL: dict[DType, float] = {"float32": 1e-4, "bfloat16": 0.1}
"""Nats by which the distributions after the probe may differ from those without a cache."""

FULL, SLIDING = "full_attention", "sliding_attention"
"""Types of layers, as transformers names them."""

_PROBE = (5, 3)
"""Tokens of the two texts that are computed with and without cache once the model is loaded."""


class TransformersContext:
    """The network of a model folder or a GGUF file with a KV cache for each sequence. Not thread-safe.

    Raises ModelError where transformers cannot load the model, where the architecture keeps something else than keys
    and values, and where its results with a cache differ from those without one.
    """

    def __init__(self, folder: str, spec: PoolSpec, num_vocab: int, threads: int, threads_batch: int) -> None:
        assert spec.dtype is not None, "decided before a worker starts"
        self._dtype, self._num_vocab = _TYPES[spec.dtype], num_vocab
        transformers.logging.disable_progress_bar()
        try:
            self._network = _network(folder, self._dtype).eval()
        except ModelError:
            raise
        except Exception as error:  # transformers raises many kinds
            raise ModelError(f"{folder}: transformers cannot load this model ({_reason(error)})") from error
        self._folder = folder
        self.n_ctx = spec.n_ctx
        self._check_architecture()
        self._cache = SequenceCache(self._network.config.num_hidden_layers, spec.parallel, self.n_ctx)
        self._lengths = [0] * spec.parallel
        self._threads = threads, threads_batch
        self._chunks: Sequence[Chunk] = ()
        self._logits: npt.NDArray[np.float32] = np.zeros((0, num_vocab), np.float32)
        try:
            kl = self._probe()
        except ModelError as error:
            raise ModelError(f"{folder}: its architecture cannot be run with the KV cache here: {error}") from error
        if not kl <= _MOST_KL[spec.dtype]:
            raise ModelError(
                f"{folder}: its architecture gives other probabilities with a KV cache than without it (KL {kl:.2g} "
                "nats), so it cannot be run here"
            )

    @property
    def description(self) -> str:
        """Class of the network and type of its weights."""
        return f"{type(self._network).__name__}, {str(self._dtype).removeprefix('torch.')}"

    def fill(self, chunks: Sequence[Chunk]) -> int:
        """Set the next batch; returns the number of rows that will have logits."""
        self._chunks = chunks
        return sum(chunk.num_rows for chunk in chunks)

    def decode(self) -> int:
        """Compute the batch: sequences with equally many tokens together. Raises ModelError where PyTorch cannot."""
        num_tokens = sum(len(chunk.ids) for chunk in self._chunks)
        torch.set_num_threads(self._threads[num_tokens > 1])
        rows: dict[int, npt.NDArray[np.float32]] = {}
        groups = itertools.groupby(sorted(self._chunks, key=lambda one: (len(one.ids), one.seq_id)), _num_tokens)
        try:
            with torch.inference_mode():
                for _num, group in groups:
                    rows |= self._computed(list(group))
        except Exception as error:  # PyTorch raises RuntimeError for anything, transformers what it likes
            raise ModelError(f"PyTorch cannot compute these tokens ({_reason(error)})") from error
        wanted = [rows[chunk.seq_id] for chunk in self._chunks if chunk.num_rows]
        self._logits = np.concatenate(wanted) if wanted else self._logits[:0]
        return OK

    def _computed(self, chunks: list[Chunk]) -> dict[int, npt.NDArray[np.float32]]:
        """Compute chunks of one length; returns the rows of logits of each sequence."""
        num_tokens = len(chunks[0].ids)
        seq_ids = [chunk.seq_id for chunk in chunks]
        step = self._cache.step = step_of(seq_ids, [chunk.position for chunk in chunks], num_tokens)
        most_rows = max(chunk.num_rows for chunk in chunks)
        found: torch.Tensor = self._network(
            input_ids=torch.tensor([list(chunk.ids) for chunk in chunks]),
            attention_mask=self._mask(step),
            position_ids=step.positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=max(most_rows, 1),
        ).logits[..., : self._num_vocab]
        for chunk in chunks:
            self._lengths[chunk.seq_id] = chunk.position + num_tokens
        return {
            chunk.seq_id: logits[logits.shape[0] - chunk.num_rows :].float().numpy()
            for chunk, logits in zip(chunks, found, strict=True)
        }

    def _mask(self, step: Step) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return the mask of all layers, or one for each type of layers where some have a sliding window."""
        config: Any = self._network.config
        kinds = set(getattr(config, "layer_types", None) or ())
        window = getattr(config, "sliding_window", None) or 0
        if not kinds:
            return mask_of(step, self._dtype, window)
        full = mask_of(step, self._dtype)
        return {FULL: full, SLIDING: mask_of(step, self._dtype, window)} if SLIDING in kinds else full

    def set_threads(self, threads: int, threads_batch: int) -> None:
        """Set the thread counts for batches of one token and for larger ones, from the next decode on."""
        self._threads = threads, threads_batch

    def logits(self, num_rows: int) -> list[Row]:
        """Return the requested rows of logits in batch order; valid until the next decode."""
        return [row_of(row) for row in self._logits[:num_rows]]

    def copy(self, source: int, target: int) -> None:
        """Make `target` an exact copy of `source`."""
        with torch.inference_mode():
            self._cache.copy(source, target, self._lengths[source])
        self._lengths[target] = self._lengths[source]

    def cut(self, seq_id: int, length: int) -> bool:
        """Drop all but the first `length` positions, which always succeeds: later tokens overwrite the others."""
        self._lengths[seq_id] = min(self._lengths[seq_id], length)
        return True

    def _check_architecture(self) -> None:
        """Raise ModelError for layers that are no attention to all tokens before."""
        config: Any = self._network.config
        kinds = set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING}
        if kinds or getattr(self._network, "_is_stateful", False):
            named = ", ".join(sorted(kinds)) or "a recurrent state"
            raise ModelError(f"{self._folder}: its architecture has {named}, for which the KV cache here has no place")

    def _probe(self) -> float:
        """Compute two short texts together, in two parts, and return the largest KL divergence from each alone without
        a cache, in nats."""
        texts = [[(7 * place + 3 * number) % self._num_vocab for place in range(_PROBE[0])] for number in (1, 2)]
        texts = texts[: len(self._lengths)]
        first = _PROBE[1]
        self.fill([Chunk(number, text[: first - number], 0, 0) for number, text in enumerate(texts)])
        self.decode()
        self.fill([Chunk(number, text[first - number :], first - number, 1) for number, text in enumerate(texts)])
        self.decode()
        self._lengths = [0] * len(self._lengths)
        return max(self._kl(row, text) for row, text in zip(self.logits(len(texts)), texts, strict=True))

    def _kl(self, row: Row, ids: Sequence[int]) -> float:
        """Return the KL divergence of a row from what follows the ids, computed without a cache, in nats."""
        with torch.inference_mode():
            plain = self._network(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1, : self._num_vocab]
        log_p, log_q = (torch.log_softmax(logits.double(), -1) for logits in (plain, torch.from_numpy(row.logits)))
        return float(torch.sum(log_p.exp() * (log_p - log_q)))


def _network(model: str, dtype: torch.dtype) -> Any:
    """Load a network. Raises ModelError where its weights lack tensors, and what transformers raises."""
    if not Path(model).is_dir():
        return load_gguf_network(model, dtype)
    found, info = AutoModelForCausalLM.from_pretrained(
        model, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True,
        output_loading_info=True,
    )  # fmt: skip
    missing = sorted(info["missing_keys"])
    if missing:  # transformers would go on with random values
        raise ModelError(f"{model}: the weights lack {len(missing):,} tensors, such as {missing[0][:200]}")
    return found


def _num_tokens(chunk: Chunk) -> int:
    return len(chunk.ids)


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, or its kind."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]

"""Vectors by PyTorch and sentence-transformers: the only place that imports them."""

import logging
from collections.abc import Sequence

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer

from engine.errors import ModelError
from engine.results import Floats

_NO_LIMIT = 1 << 20


class TorchBackend:
    """A folder of sentence-transformers on the processor; weights in float32 are mapped, so that workers share them.

    is_bf16: weights and arithmetic in bfloat16, half the memory traffic and on processors with AVX512-BF16 or AMX
    more than twice the speed.
    """

    def __init__(self, folder: str, *, is_bf16: bool) -> None:
        torch.set_num_threads(1)  # the threads of OpenMP would not live through the fork
        transformers.logging.disable_progress_bar()
        logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
        try:
            self._model = SentenceTransformer(
                folder,
                device="cpu",
                local_files_only=True,
                model_kwargs={"dtype": torch.bfloat16 if is_bf16 else torch.float32},
            )
            self._tokenizer = self._model.tokenizer
            self.dim = int(self._model.get_embedding_dimension())
            self.max_tokens = min(int(self._model.max_seq_length), _NO_LIMIT)
        except Exception as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ModelError(f"{folder} cannot be loaded as an embedding model: {reason[0][:300]}") from error
        self._model.eval()

    def begin(self, threads: int) -> None:
        """Called once in each worker, before its first texts."""
        torch.set_num_threads(threads)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, all of them."""
        ids = self._tokenizer(
            list(texts), truncation=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
        )["input_ids"]
        return [len(of_text) for of_text in ids]

    def embed(self, texts: Sequence[str]) -> Floats:
        """Vectors of texts that are padded to the longest of them, float32 (n, dim)."""
        with torch.inference_mode():
            found = self._model(self._model.preprocess(list(texts)))["sentence_embedding"]
        vectors: Floats = found.float().numpy().astype(np.float32, copy=False)
        return vectors

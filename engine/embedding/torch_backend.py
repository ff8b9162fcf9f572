"""Backend PyTorch with sentence-transformers; with `trace`, the only module that imports them."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer

from engine.embedding.backends import Tokens
from engine.embedding.texts import TextReader, padded
from engine.errors import ModelError
from engine.step_parts import Floats

MOST_TOKENS = 1 << 20


class TorchModel:
    """Model loaded from a sentence-transformers folder on the CPU. Raises ModelError.

    tokenizer: the fast tokenizer; pad: the padding token id.
    """

    def __init__(self, folder: str, **options: Any) -> None:
        torch.set_num_threads(1)  # OpenMP threads do not survive a fork
        transformers.logging.disable_progress_bar()
        logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
        try:
            self.modules = SentenceTransformer(folder, device="cpu", local_files_only=True, model_kwargs=options).eval()
            found = self.modules.tokenizer
            self.tokenizer = found.backend_tokenizer
            self.pad = int(found.pad_token_id or 0)
            self.dim = int(self.modules.get_embedding_dimension())
            self.max_tokens = min(int(self.modules.max_seq_length), MOST_TOKENS)
        except Exception as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ModelError(f"{folder} cannot be loaded as an embedding model: {reason[0][:300]}") from error

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return vectors (n, dim) of ids (n, tokens), where mask is 1."""
        found: torch.Tensor = self.modules({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]
        return found


class TorchBackend:
    """Backend PyTorch. Float32 weights are mapped, so workers share them; is_bf16: weights, arithmetic in bfloat16."""

    def __init__(self, folder: str, *, is_bf16: bool) -> None:
        self._model = TorchModel(folder, dtype=torch.bfloat16 if is_bf16 else torch.float32)
        self._reader = TextReader(self._model.tokenizer, self._model.max_tokens)
        self.dim, self.max_tokens, self.num_vocab = self._model.dim, self._model.max_tokens, self._reader.num_vocab

    def begin(self, threads: int) -> None:
        """Set the number of threads; called once in each worker, before its first texts."""
        torch.set_num_threads(threads)

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Tokenise texts, truncating each to max_tokens ids."""
        return self._reader.read(texts)

    def embed(self, ids: Sequence[Sequence[int]]) -> Floats:
        """Return vectors of a batch padded to its longest text, float32 (n, dim)."""
        with torch.inference_mode():
            rows, mask = padded(ids, self._model.pad)
            found = self._model(torch.from_numpy(rows), torch.from_numpy(mask))
        vectors: Floats = found.float().numpy().astype(np.float32, copy=False)
        return vectors

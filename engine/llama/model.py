"""Loaded model: weights, vocabulary, metadata, tokenising and detokenising."""

import ctypes
from collections.abc import Callable
from functools import cached_property

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError, ModelError
from engine.llama.library import LOAD_MODES, start_backend
from engine.specs import PoolSpec
from engine.vocabulary import TokenKind, Vocabulary, checked_size

_SPM = 1
_KIND_OF_ATTRIBUTE = {
    llama.LLAMA_TOKEN_ATTR_CONTROL: TokenKind.CONTROL,
    llama.LLAMA_TOKEN_ATTR_UNKNOWN: TokenKind.CONTROL,
    llama.LLAMA_TOKEN_ATTR_BYTE: TokenKind.BYTE,
}


class Model:
    """Weights and vocabulary of one GGUF file.

    `on_progress` is called with 0 to 1 while the weights load. Raises ModelError when llama.cpp rejects the file.
    """

    def __init__(
        self,
        path: str,
        spec: PoolSpec,
        *,
        vocab_only: bool = False,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        start_backend()
        params = llama.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = spec.n_gpu_layers if spec.n_gpu_layers >= 0 else 999
        params.load_mode = LOAD_MODES[spec.load]
        params.use_extra_bufts = not spec.share_weights

        @llama.llama_progress_callback  # type: ignore[untyped-decorator]
        def progress(fraction: float, _user_data: object) -> bool:
            if on_progress:
                on_progress(fraction)
            return True

        params.progress_callback = progress
        handle = llama.llama_model_load_from_file(path.encode(), params)
        if not handle:
            raise ModelError(f"{path}: llama.cpp could not load this file; the log has the reason")
        self.handle = handle
        self.path = path
        self.vocab = llama.llama_model_get_vocab(handle)
        self.num_vocab: int = llama.llama_vocab_n_tokens(self.vocab)
        self.n_ctx_train: int = llama.llama_model_n_ctx_train(handle)
        self.is_recurrent = bool(llama.llama_model_is_recurrent(handle) or llama.llama_model_is_hybrid(handle))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary: bytes and kind of each id, BOS and its settings. Raises ConfigError for one that is too
        large."""
        pieces, kinds, names = [], bytearray(self.num_vocab), {}
        for token in range(self.num_vocab):
            attribute = llama.llama_vocab_get_attr(self.vocab, token)
            for flag, kind in _KIND_OF_ATTRIBUTE.items():
                kinds[token] |= kind if attribute & flag else 0
            if llama.llama_vocab_is_eog(self.vocab, token):
                kinds[token] |= TokenKind.CONTROL | TokenKind.END
            if kinds[token] & TokenKind.CONTROL:
                names[token] = (llama.llama_vocab_get_text(self.vocab, token) or b"").decode("utf-8", "replace")
            pieces.append(b"" if kinds[token] & TokenKind.CONTROL else self._piece(token))
        bos = llama.llama_vocab_bos(self.vocab)
        return checked_size(
            Vocabulary(
                pieces=tuple(pieces),
                kinds=bytes(kinds),
                names=names,
                bos=bos if bos >= 0 else None,
                add_bos=bool(llama.llama_vocab_get_add_bos(self.vocab)),
                add_space_prefix=self._adds_space(),
            )
        )

    def _adds_space(self) -> bool:
        declared = self.metadata("tokenizer.ggml.add_space_prefix")
        if declared:
            return declared == "true"
        is_spm: bool = llama.llama_vocab_type(self.vocab) == _SPM
        return is_spm

    def _piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        length = llama.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
        if length < 0:
            buffer = ctypes.create_string_buffer(-length)
            length = llama.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
        return buffer.raw[: max(length, 0)]

    def metadata(self, key: str) -> str:
        """Return a metadata value as text; empty if the file does not have it."""
        buffer = ctypes.create_string_buffer(256)
        length = llama.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else ""

    @property
    def chat_template(self) -> str:
        """The model's own Jinja template; empty when it has none."""
        template = llama.llama_model_chat_template(self.handle, None)
        return (template or b"").decode("utf-8", "replace")

    @cached_property
    def description(self) -> str:
        """llama.cpp's own short description, such as "llama 1B Q4_K - Medium"."""
        buffer = ctypes.create_string_buffer(128)
        llama.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def tokenize(self, text: str, *, add_bos: bool = True, special: bool = False) -> list[int]:
        """Return the ids of `text`; `add_bos` prepends BOS if the GGUF specifies it, `special` parses written control
        tokens. Raises ModelError if llama.cpp cannot tokenise it."""
        raw = text.encode("utf-8", "surrogatepass")
        room = len(raw) + 8
        for _attempt in range(2):
            ids = (llama.llama_token * room)()
            count = llama.llama_tokenize(self.vocab, raw, len(raw), ids, room, add_bos, special)
            if count >= 0:
                return list(ids[:count])
            room = -count
        raise ModelError(f"{self.path}: this text cannot be tokenised")

    def is_control(self, token: int) -> bool:
        """Return True for an id that represents no text, such as the end of a sequence."""
        return bool(llama.llama_vocab_is_control(self.vocab, token))

    def detokenize(self, ids: list[int]) -> bytes:
        """Return llama.cpp's own text of `ids`, without control tokens; raises ModelError on failure."""
        tokens = np.array(ids, dtype=np.int32)
        room = 64 + 64 * len(ids)
        pointer = tokens.ctypes.data_as(ctypes.POINTER(llama.llama_token))
        for _attempt in range(2):
            buffer = ctypes.create_string_buffer(room)
            length = llama.llama_detokenize(self.vocab, pointer, len(ids), buffer, room, False, False)
            if length >= 0:
                return buffer.raw[:length]
            room = -length
        raise ModelError(f"{self.path}: these ids cannot be detokenised")

    def check_ids(self, ids: list[int], of: str = "a prompt") -> npt.NDArray[np.int32]:
        """Return the ids `of` something as an array; raises ConfigError for an id outside the vocabulary."""
        array = np.array(ids, dtype=np.int64)
        if len(array) and not (array.min() >= 0 and array.max() < self.num_vocab):
            raise ConfigError(
                f"the token ids of {of} must be from 0 to {self.num_vocab - 1:,}: this model has no others"
            )
        return array.astype(np.int32)

    def close(self) -> None:
        """Free the weights."""
        llama.llama_model_free(self.handle)

"""High-level runtime: llama-cpp-python as most programs use it, `Llama.create_completion`.

The four functions of llama.cpp that it calls are timed by wrapping them, at less than a microsecond per call; the rest
of the time is its own. `engine.llama.arm` defines the protocol.
"""

import socket
import time
from collections.abc import Callable
from typing import Any

import llama_cpp.llama_cpp as llama
from llama_cpp import Llama

from engine.errors import ModelError
from engine.llama.arm import Answer, Ask, LoadArm, Parts, run
from engine.llama.library import GGML_TYPES


class HighLevel:
    """Runtime with one `Llama` object and one stream."""

    def __init__(self, load: LoadArm) -> None:
        spec = load.spec
        try:
            self._llama: Any = Llama(
                load.model,
                n_gpu_layers=spec.n_gpu_layers,
                use_mmap=spec.load != "none",
                use_mlock=spec.load == "mlock",
                n_ctx=spec.padded_n_ctx,
                n_batch=spec.resolved_n_batch,
                n_ubatch=spec.resolved_n_ubatch,
                n_threads=load.threads,
                n_threads_batch=load.threads_batch,
                # it has no "auto", which would use flash attention wherever the backend supports it
                flash_attn=spec.flash_attn is not False,
                type_k=GGML_TYPES[spec.type_k],
                type_v=GGML_TYPES[spec.type_v],
                no_perf=True,
                verbose=False,
            )
        except (ValueError, RuntimeError) as error:
            raise ModelError(f"{load.model}: llama_cpp.Llama could not open this file: {error}") from error
        self.vocab = llama.llama_model_get_vocab(self._llama.model)
        self._parts, self._times = Parts(), list[float]()
        self._is_end = llama.llama_vocab_is_eog
        llama.llama_tokenize = self._timed("tokenise_s", llama.llama_tokenize)
        llama.llama_sampler_sample = self._sampled(self._timed("sample_s", llama.llama_sampler_sample))
        decoding = self._timed("decode_s", llama.llama_decode)
        computing = self._timed("prefill_s", llama.llama_decode)
        llama.llama_decode = lambda context, batch: (decoding if self._times else computing)(context, batch)

    def answer(self, ask: Ask) -> Answer:
        """Complete the one prompt; no cached tokens are reused except its first `depth` ids.

        A bias against the end of sequence would be a Python callback over the whole vocabulary, so to ignore it,
        llama_vocab_is_eog is replaced by a function that returns False. Raises ModelError if create_completion fails.
        """
        (prompt,) = ask.prompts
        llama.llama_vocab_is_eog = (lambda _vocab, _token: False) if ask.ignores_end else self._is_end
        self._llama.reset()
        if ask.depth:
            self._llama.eval(prompt[: ask.depth])
        self._parts, self._times = Parts(), []
        submitted = time.monotonic()
        try:
            done = self._llama.create_completion(prompt, max_tokens=ask.num_generated, seed=ask.seed)
        except (ValueError, RuntimeError) as error:
            raise ModelError(f"create_completion failed: {error}") from error
        wall_s = time.monotonic() - submitted
        num_prompt = done["usage"]["prompt_tokens"] - ask.depth
        return Answer(submitted, wall_s, [num_prompt], [self._times], self._parts)

    def close(self) -> None:
        """Free the model and its context."""
        self._llama.close()

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            found = function(*arguments)
            setattr(self._parts, name, getattr(self._parts, name) + time.perf_counter() - began)
            return found

        return timed

    def _sampled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def sampled(*arguments: Any) -> Any:
            token = function(*arguments)
            self._times.append(time.monotonic())
            return token

        return sampled


def main(end: socket.socket) -> None:
    """Answer requests with this runtime."""
    run(end, HighLevel)

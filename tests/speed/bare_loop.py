"""The least that any program must do: `llama_decode` and llama.cpp's own sampler chain, and nothing else.

    python -m tests.speed.bare_loop MODEL --sequences 64 --threads 2

Prints one line of JSON: wall_s and decode_s (seconds, prompts included), decode_per_s of the tokens after the first.
The share of wall time inside `llama_decode` is what our own loop is held against.
"""

import argparse
import ctypes
import json
import time

import llama_cpp.llama_cpp as llama
import numpy as np

MOST_PREFILL = 512


def load(path: str, *, is_repacked: bool) -> tuple[object, object, list[int]]:
    """The model, its vocabulary and its end-of-generation ids."""
    llama.llama_log_set(_quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    params.use_extra_bufts = is_repacked
    model = llama.llama_model_load_from_file(path.encode(), params)
    vocab = llama.llama_model_get_vocab(model)
    ends = [token for token in range(llama.llama_vocab_n_tokens(vocab)) if llama.llama_vocab_is_eog(vocab, token)]
    return model, vocab, ends


@llama.llama_log_callback
def _quiet(_level: int, _text: bytes, _data: object) -> None:
    """llama.cpp says nothing while it is timed."""


def open_context(model: object, num_sequences: int, n_ctx: int, threads: int) -> object:
    """A context with a KV stream for each sequence."""
    params = llama.llama_context_default_params()
    params.n_ctx = n_ctx * num_sequences
    params.n_batch = max(MOST_PREFILL, num_sequences)
    params.n_ubatch = MOST_PREFILL
    params.n_seq_max = num_sequences
    params.n_threads = params.n_threads_batch = threads
    params.kv_unified = False
    params.no_perf = True
    return llama.llama_init_from_model(model, params)


def sampler_chain(vocab: object, barred: list[int], seed: int) -> object:
    """llama.cpp's default stages in their order, end of sequence barred."""
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    biases = (llama.llama_logit_bias * len(barred))(*((token, float("-inf")) for token in barred))
    stages = (
        llama.llama_sampler_init_logit_bias(llama.llama_vocab_n_tokens(vocab), len(barred), biases),
        llama.llama_sampler_init_top_k(40),
        llama.llama_sampler_init_top_p(0.95, 1),
        llama.llama_sampler_init_min_p(0.05, 1),
        llama.llama_sampler_init_temp(0.8),
        llama.llama_sampler_init_dist(seed),
    )
    for stage in stages:
        llama.llama_sampler_chain_add(chain, stage)
    return chain


class Loop:
    """Prompts in, then one token of every sequence a step, each step timed inside `llama_decode`."""

    def __init__(self, context: object, chains: list[object]) -> None:
        self.context, self.chains = context, chains
        self.batch = llama.llama_batch_init(max(MOST_PREFILL, len(chains)), 0, 1)
        self.decode_s = 0.0

    def put(self, sequence: int, token: int, position: int, has_logits: bool) -> None:
        """Add one token to the batch."""
        here = self.batch.n_tokens
        self.batch.token[here], self.batch.pos[here] = token, position
        self.batch.n_seq_id[here], self.batch.seq_id[here][0] = 1, sequence
        self.batch.logits[here] = has_logits
        self.batch.n_tokens += 1

    def run(self) -> None:
        """Decode the batch and empty it."""
        began = time.perf_counter()
        code = llama.llama_decode(self.context, self.batch)
        self.decode_s += time.perf_counter() - began
        if code:
            raise SystemExit(f"llama_decode gave {code}")

    def prefill(self, prompts: list[list[int]]) -> list[int]:
        """Compute all prompts, whole ones together in a batch; gives the first token of each."""
        tokens: list[int] = []
        per_batch = max(1, MOST_PREFILL // len(prompts[0]))
        for first in range(0, len(prompts), per_batch):
            group = range(first, min(first + per_batch, len(prompts)))
            self.batch.n_tokens = 0
            for sequence in group:
                for position, token in enumerate(prompts[sequence]):
                    self.put(sequence, token, position, position == len(prompts[sequence]) - 1)
            self.run()
            last = len(prompts[0])
            tokens += [self.sample(sequence, last * (i + 1) - 1) for i, sequence in enumerate(group)]
        return tokens

    def sample(self, sequence: int, row: int) -> int:
        """Draw from one row of logits; llama.cpp accepts the token itself."""
        token: int = llama.llama_sampler_sample(self.chains[sequence], self.context, row)
        return token

    def generate(self, tokens: list[int], num_prompt: int, num_tokens: int) -> None:
        """`num_tokens` - 1 further tokens of every sequence."""
        for position in range(num_prompt, num_prompt + num_tokens - 1):
            self.batch.n_tokens = 0
            for sequence, token in enumerate(tokens):
                self.put(sequence, token, position, True)
            self.run()
            tokens = [self.sample(sequence, sequence) for sequence in range(len(tokens))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--n-ctx", type=int, default=256)
    parser.add_argument("--no-repack", action="store_true")
    given = parser.parse_args()

    model, vocab, ends = load(given.model, is_repacked=not given.no_repack)
    context = open_context(model, given.sequences, given.n_ctx, given.threads)
    chains = [sampler_chain(vocab, ends, seed) for seed in range(given.sequences)]
    random = np.random.default_rng(0)
    most = llama.llama_vocab_n_tokens(vocab)
    prompts = random.integers(300, most, (given.sequences, given.prompt)).tolist()

    Loop(context, chains[:1]).prefill([prompts[0]])  # warm: pages read, threads started
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    loop = Loop(context, chains)
    began = time.perf_counter()
    tokens = loop.prefill(prompts)
    middle = time.perf_counter()
    loop.generate(tokens, given.prompt, given.tokens)
    end = time.perf_counter()
    rate = given.sequences * (given.tokens - 1) / (end - middle)
    print(json.dumps({"wall_s": end - began, "decode_s": loop.decode_s, "decode_per_s": rate}))


if __name__ == "__main__":
    main()

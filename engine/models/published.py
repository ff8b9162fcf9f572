"""Published models that can be named in words: their families, sizes and dimensions."""

from typing import NamedTuple

from engine.models.experts import Experts
from engine.models.shapes import SHAPES, Shape


class Mixture(NamedTuple):
    """Dimensions of a mixture of experts: a dense model whose feed-forward net is one expert, and the experts."""

    shape: Shape
    experts: Experts


class Published(NamedTuple):
    """Published model. words: names of its family, without separators; dimensions: its name in SHAPES or MIXTURES.

    size: number of parameters as its name states it, of 8x7B the product; active: those that a token uses where its
    name states them, else 0.
    """

    title: str
    words: tuple[str, ...]
    dimensions: str
    size: float
    active: float = 0.0

    @property
    def shape(self) -> Shape:
        """Its dimensions; of a mixture those with one expert."""
        return MIXTURES[self.dimensions].shape if self.experts else SHAPES[self.dimensions]

    @property
    def experts(self) -> Experts | None:
        """Its experts; None where every token uses all weights."""
        return MIXTURES[self.dimensions].experts if self.dimensions in MIXTURES else None


MIXTURES = {
    "mixtral-8x7b": Mixture(
        Shape(
            architecture="llama", n_vocab=32_000, n_ctx_train=32_768, rope_base=1_000_000,
            n_embd=4096, n_layer=32, n_head=32, n_head_kv=8, n_ff=14_336,
        ),
        Experts(8, 2),
    ),
    "mixtral-8x22b": Mixture(
        Shape(
            architecture="llama", n_vocab=32_768, n_ctx_train=65_536, rope_base=1_000_000,
            n_embd=6144, n_layer=56, n_head=48, n_head_kv=8, n_ff=16_384,
        ),
        Experts(8, 2),
    ),
    "qwen3-30b-a3b": Mixture(
        Shape(
            architecture="llama", n_vocab=151_936, n_ctx_train=40_960, norm_eps=1e-6, rope_base=1_000_000,
            add_bos=False, n_embd=2048, n_layer=48, n_head=32, n_head_kv=4, n_ff=768, n_head_width=128,
        ),
        Experts(128, 8),
    ),
    "qwen3-235b-a22b": Mixture(
        Shape(
            architecture="llama", n_vocab=151_936, n_ctx_train=40_960, norm_eps=1e-6, rope_base=1_000_000,
            add_bos=False, n_embd=4096, n_layer=94, n_head=64, n_head_kv=4, n_ff=1536, n_head_width=128,
        ),
        Experts(128, 8),
    ),
    "olmoe-7b": Mixture(
        Shape(
            architecture="llama", n_vocab=50_304, n_ctx_train=4096,
            n_embd=2048, n_layer=16, n_head=16, n_head_kv=16, n_ff=1024,
        ),
        Experts(64, 8),
    ),
    "phi-3.5-moe": Mixture(
        Shape(
            architecture="llama", n_vocab=32_064, n_ctx_train=131_072,
            n_embd=4096, n_layer=32, n_head=32, n_head_kv=8, n_ff=6400,
        ),
        Experts(16, 2),
    ),
    "gpt-oss-20b": Mixture(
        Shape(
            architecture="llama", n_vocab=201_088, n_ctx_train=131_072, rope_base=150_000, add_bos=False,
            n_embd=2880, n_layer=24, n_head=64, n_head_kv=8, n_ff=2880, n_head_width=64,
        ),
        Experts(32, 4, "MXFP4"),
    ),
    "gpt-oss-120b": Mixture(
        Shape(
            architecture="llama", n_vocab=201_088, n_ctx_train=131_072, rope_base=150_000, add_bos=False,
            n_embd=2880, n_layer=36, n_head=64, n_head_kv=8, n_ff=2880, n_head_width=64,
        ),
        Experts(128, 4, "MXFP4"),
    ),
}  # fmt: skip
"""Mixtures of experts by name, with the dimensions in each model's config.json on the Hugging Face hub."""

PUBLISHED = (
    Published("Mistral 7B", ("mistral",), "mistral-7b", 7e9),
    Published("Mistral Nemo 12B", ("mistral", "mistralnemo", "nemo"), "mistral-nemo-12b", 12e9),
    Published("Mistral Small 24B", ("mistral", "mistralsmall"), "mistral-small-24b", 24e9),
    Published("Llama 3.1 8B", ("llama", "llama3.1"), "llama-3.1-8b", 8e9),
    Published("Llama 3.1 70B", ("llama", "llama3.1", "llama3.3"), "llama-3.1-70b", 70e9),
    Published("Llama 3.1 405B", ("llama", "llama3", "llama3.1"), "llama-3.1-405b", 405e9),
    Published("Llama 3.2 1B", ("llama", "llama3", "llama3.2"), "llama-3.2-1b", 1e9),
    Published("Llama 3.2 3B", ("llama", "llama3", "llama3.2"), "llama-3.2-3b", 3e9),
    Published("Llama 3 8B", ("llama3",), "llama-3-8b", 8e9),
    Published("Llama 3 70B", ("llama3",), "llama-3-70b", 70e9),
    Published("Llama 2 7B", ("llama", "llama2", "codellama", "vicuna"), "llama-2-7b", 7e9),
    Published("Llama 2 13B", ("llama", "llama2", "codellama", "vicuna"), "llama-2-13b", 13e9),
    Published("Llama 2 70B", ("llama2", "codellama"), "llama-2-70b", 70e9),
    Published("TinyLlama 1.1B", ("tinyllama",), "tinyllama-1.1b", 1.1e9),
    Published("Qwen2.5 0.5B", ("qwen", "qwen2", "qwen2.5"), "qwen2.5-0.5b", 0.5e9),
    Published("Qwen2.5 1.5B", ("qwen", "qwen2", "qwen2.5"), "qwen2.5-1.5b", 1.5e9),
    Published("Qwen2.5 3B", ("qwen", "qwen2", "qwen2.5"), "qwen2.5-3b", 3e9),
    Published("Qwen2.5 7B", ("qwen", "qwen2", "qwen2.5"), "qwen2.5-7b", 7e9),
    Published("Qwen2.5 14B", ("qwen", "qwen2", "qwen2.5"), "qwen2.5-14b", 14e9),
    Published("Qwen2.5 32B", ("qwen", "qwen2", "qwen2.5"), "qwen2.5-32b", 32e9),
    Published("Qwen2.5 72B", ("qwen", "qwen2", "qwen2.5"), "qwen2.5-72b", 72e9),
    Published("Qwen3 0.6B", ("qwen", "qwen3"), "qwen3-0.6b", 0.6e9),
    Published("Qwen3 1.7B", ("qwen", "qwen3"), "qwen3-1.7b", 1.7e9),
    Published("Qwen3 4B", ("qwen", "qwen3"), "qwen3-4b", 4e9),
    Published("Qwen3 8B", ("qwen", "qwen3"), "qwen3-8b", 8e9),
    Published("Qwen3 14B", ("qwen3",), "qwen3-14b", 14e9),
    Published("Qwen3 32B", ("qwen3",), "qwen3-32b", 32e9),
    Published("Gemma 3 270M", ("gemma", "gemma3"), "gemma-3-270m", 270e6),
    Published("Gemma 3 1B", ("gemma", "gemma3"), "gemma-3-1b", 1e9),
    Published("Gemma 3 4B", ("gemma", "gemma3"), "gemma-3-4b", 4e9),
    Published("Gemma 3 12B", ("gemma", "gemma3"), "gemma-3-12b", 12e9),
    Published("Gemma 3 27B", ("gemma", "gemma3"), "gemma-3-27b", 27e9),
    Published("SmolLM2 135M", ("smollm", "smollm2"), "smollm2-135m", 135e6),
    Published("SmolLM2 360M", ("smollm", "smollm2"), "smollm2-360m", 360e6),
    Published("SmolLM2 1.7B", ("smollm", "smollm2"), "smollm2-1.7b", 1.7e9),
    Published("Phi-2", ("phi2",), "phi-2", 2.7e9),
    Published("Phi-3 mini", ("phi", "phi3", "phi3mini", "phi3.5"), "phi-3-mini", 3.8e9),
    Published("xLAM 1B", ("xlam",), "xlam-1b", 1e9),
    Published("Mixtral 8x7B", ("mixtral",), "mixtral-8x7b", 56e9),
    Published("Mixtral 8x22B", ("mixtral",), "mixtral-8x22b", 176e9),
    Published("Qwen3 30B A3B", ("qwen", "qwen3", "qwen3coder"), "qwen3-30b-a3b", 30e9, 3e9),
    Published("Qwen3 235B A22B", ("qwen", "qwen3"), "qwen3-235b-a22b", 235e9, 22e9),
    Published("OLMoE 7B A1B", ("olmoe",), "olmoe-7b", 7e9, 1e9),
    Published("Phi-3.5 MoE", ("phimoe", "phi3.5moe"), "phi-3.5-moe", 42e9, 6.6e9),
    Published("GPT-OSS 20B", ("gptoss",), "gpt-oss-20b", 20e9, 3.6e9),
    Published("GPT-OSS 120B", ("gptoss",), "gpt-oss-120b", 120e9, 5.1e9),
)
"""Models by family; where only a size is given, the first of the nearest dense ones is meant."""

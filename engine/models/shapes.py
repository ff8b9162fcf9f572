"""Model shapes: the dimensions that determine speed and memory, of known models and in free form."""

from dataclasses import dataclass, replace

from engine.errors import ConfigError
from engine.models.gguf import MAX_LAYERS
from engine.validation import Spec

ARCHITECTURES = ("llama", "qwen2", "phi2", "gemma3")
_BLOCK = 32
"""Row lengths must be a multiple of the block size of the simplest quantisations."""
_FEWEST_TOKENS = 512
_LITTLE_VOCABULARY = 1024


@dataclass(frozen=True, kw_only=True)
class Shape(Spec):
    """Dimensions of a dense decoder.

    architecture: "llama" has RMS norms and a gated feed-forward net; "qwen2" adds biases to queries, keys and values;
    "phi2" has layer norms, biases everywhere, one matrix for queries, keys and values, and attention and feed-forward
    net in parallel; "gemma3" has norms of queries and keys and after attention and feed-forward net, and five of six
    layers attend only to `sliding_window` tokens (0: all attend to the whole context). n_head_width: width of one head,
    0 for n_embd / n_head. n_rot: dimensions of a head with rotary embedding, 0 for all. is_tied: the output matrix is
    the token embedding. copies_of: (i, n) gives every layer the tensor types of layer i of n.
    Raises ConfigError for dimensions that llama.cpp or the blocks of a quantisation do not support.
    """

    architecture: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    norm_eps: float = 1e-5
    rope_base: float = 10_000
    n_rot: int = 0
    n_head_width: int = 0
    sliding_window: int = 0
    is_tied: bool = False
    add_bos: bool = True
    copies_of: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self._one_of("architecture", ARCHITECTURES)
        self._whole("n_vocab", _FEWEST_TOKENS, 1 << 20)
        self._whole("n_ctx_train", 16, 1 << 24)
        self._whole("n_embd", _BLOCK, 1 << 16)
        self._whole("n_layer", 1, MAX_LAYERS)
        self._whole("n_head", 1, 1 << 12)
        self._whole("n_head_kv", 1, self.n_head)
        self._whole("n_ff", _BLOCK, 1 << 18)
        self._whole("n_head_width", 0, 1 << 12)
        self._whole("n_rot", 0, self.n_head_dim)
        self._whole("sliding_window", 0, self.n_ctx_train)
        if self.sliding_window and self.architecture != "gemma3":
            raise ConfigError(f"sliding_window = {self.sliding_window:,}: must be 0 for {self.architecture}")
        heads = f"{self.n_head} heads of even size"
        for name, divisor, why in (
            ("n_embd", _BLOCK, "quantisation block"),
            ("n_ff", _BLOCK, "quantisation block"),
            ("n_head_width", _BLOCK, "quantisation block"),
            ("n_embd", 1 if self.n_head_width else 2 * self.n_head, heads),
            ("n_head", self.n_head_kv, f"{self.n_head_kv} KV heads"),
            ("n_rot", 2, "rotary pairs"),
        ):
            if getattr(self, name) % divisor:
                raise ConfigError(f"{name} = {getattr(self, name):,}: must be a multiple of {divisor} ({why})")

    @property
    def n_head_dim(self) -> int:
        """Width of one head."""
        return self.n_head_width or self.n_embd // self.n_head

    @property
    def n_embd_q(self) -> int:
        """Width of a layer's queries."""
        return self.n_head_dim * self.n_head

    @property
    def n_embd_kv(self) -> int:
        """Width of a layer's keys."""
        return self.n_head_dim * self.n_head_kv

    @property
    def summary(self) -> str:
        """Short description of the shape."""
        layers = "1 layer" if self.n_layer == 1 else f"{self.n_layer} layers"
        return f"{self.architecture}, {layers} of {self.n_embd:,}"


def shape_named(name: str) -> Shape:
    """Return the shape of that name in SHAPES; raises ConfigError listing the names."""
    if name not in SHAPES:
        raise ConfigError(f"shape = {name!r}: must be one of {', '.join(SHAPES)}")
    return SHAPES[name]


def free_form(
    *,
    layers: int,
    width: int,
    heads: int | None = None,
    kv_heads: int | None = None,
    ff: int | None = None,
    vocab: int = 32_000,
    context: int = 4096,
) -> Shape:
    """Return a shape of the llama family from its dimensions; raises ConfigError for incompatible ones.

    By default a head is 128 wide, or 64 in models narrower than 2,048 and where 128 does not divide the width; keys and
    values have as many heads as queries; the feed-forward net is 8/3 of the width, rounded up to a multiple of 256.
    """
    head = 64 if width < 2048 or width % 128 else 128
    num_heads = heads or max(1, width // head)
    return Shape(
        architecture="llama",
        n_vocab=vocab,
        n_ctx_train=context,
        n_embd=width,
        n_layer=layers,
        n_head=num_heads,
        n_head_kv=kv_heads or num_heads,
        n_ff=ff or -(-8 * width // (3 * 256)) * 256,
    )


def layers_like(shape: Shape, layer: int, num_layers: int = 1) -> Shape:
    """Return a shape of `num_layers` copies of one layer, with its tensor types, and a negligible vocabulary."""
    return replace(
        shape,
        n_layer=num_layers,
        n_vocab=_LITTLE_VOCABULARY,
        is_tied=False,
        copies_of=(layer, shape.n_layer),
    )


_LLAMA_1B = Shape(
    architecture="llama", n_vocab=32_000, n_ctx_train=2048,
    n_embd=2048, n_layer=22, n_head=32, n_head_kv=4, n_ff=5632,
)  # fmt: skip
_QWEN_HALF_B = Shape(
    architecture="qwen2", n_vocab=151_936, n_ctx_train=32_768, norm_eps=1e-6, rope_base=1_000_000, add_bos=False,
    n_embd=896, n_layer=24, n_head=14, n_head_kv=2, n_ff=4864, is_tied=True,
)  # fmt: skip
_GEMMA_1B = Shape(
    architecture="gemma3", n_vocab=262_144, n_ctx_train=32_768, norm_eps=1e-6, rope_base=1_000_000,
    n_embd=1152, n_layer=26, n_head=4, n_head_kv=1, n_ff=6912, n_head_width=256, sliding_window=512, is_tied=True,
)  # fmt: skip
_LLAMA_8B = Shape(
    architecture="llama", n_vocab=128_256, n_ctx_train=8192, rope_base=500_000,
    n_embd=4096, n_layer=32, n_head=32, n_head_kv=8, n_ff=14_336,
)  # fmt: skip
_LLAMA_70B = replace(_LLAMA_8B, n_embd=8192, n_layer=80, n_head=64, n_ff=28_672)
_LLAMA_SMALL = replace(_LLAMA_8B, n_ctx_train=131_072, is_tied=True)
_SMOLLM = Shape(
    architecture="llama", n_vocab=49_152, n_ctx_train=8192, rope_base=100_000,
    n_embd=576, n_layer=30, n_head=9, n_head_kv=3, n_ff=1536, is_tied=True,
)  # fmt: skip
_QWEN_3 = Shape(
    architecture="llama", n_vocab=151_936, n_ctx_train=40_960, norm_eps=1e-6, rope_base=1_000_000, add_bos=False,
    n_embd=1024, n_layer=28, n_head=16, n_head_kv=8, n_ff=3072, n_head_width=128, is_tied=True,
)  # fmt: skip
_TINY = Shape(
    architecture="llama", n_vocab=1024, n_ctx_train=512,
    n_embd=256, n_layer=8, n_head=4, n_head_kv=2, n_ff=512,
)  # fmt: skip

SHAPES = {
    "llama-1.1b-32k": _LLAMA_1B,
    "tinyllama-1.1b": _LLAMA_1B,
    "llama-2-7b": Shape(
        architecture="llama", n_vocab=32_000, n_ctx_train=4096,
        n_embd=4096, n_layer=32, n_head=32, n_head_kv=32, n_ff=11_008,
    ),
    "llama-2-13b": Shape(
        architecture="llama", n_vocab=32_000, n_ctx_train=4096,
        n_embd=5120, n_layer=40, n_head=40, n_head_kv=40, n_ff=13_824,
    ),
    "llama-2-70b": replace(_LLAMA_70B, n_vocab=32_000, n_ctx_train=4096, rope_base=10_000),
    "llama-3-8b": _LLAMA_8B,
    "llama-3-70b": _LLAMA_70B,
    "llama-3.1-8b": replace(_LLAMA_8B, n_ctx_train=131_072),
    "llama-3.1-70b": replace(_LLAMA_70B, n_ctx_train=131_072),
    "llama-3.1-405b": replace(
        _LLAMA_70B, n_ctx_train=131_072, n_embd=16_384, n_layer=126, n_head=128, n_ff=53_248
    ),
    "llama-3.2-1b": replace(_LLAMA_SMALL, n_embd=2048, n_layer=16, n_ff=8192),
    "llama-3.2-3b": replace(_LLAMA_SMALL, n_embd=3072, n_layer=28, n_head=24, n_ff=8192),
    "smollm2-135m": _SMOLLM,
    "smollm2-360m": replace(_SMOLLM, n_embd=960, n_layer=32, n_head=15, n_head_kv=5, n_ff=2560),
    "smollm2-1.7b": replace(_SMOLLM, n_embd=2048, n_layer=24, n_head=32, n_head_kv=32, n_ff=8192),
    "xlam-1b": Shape(
        architecture="llama", n_vocab=32_256, n_ctx_train=16_384, rope_base=100_000,
        n_embd=2048, n_layer=24, n_head=16, n_head_kv=16, n_ff=5504,
    ),
    "mistral-nemo-12b": Shape(
        architecture="llama", n_vocab=131_072, n_ctx_train=131_072, rope_base=1_000_000,
        n_embd=5120, n_layer=40, n_head=32, n_head_kv=8, n_ff=14_336, n_head_width=128,
    ),
    "mistral-small-24b": Shape(
        architecture="llama", n_vocab=131_072, n_ctx_train=32_768, rope_base=100_000_000,
        n_embd=5120, n_layer=40, n_head=32, n_head_kv=8, n_ff=32_768, n_head_width=128,
    ),
    "phi-3-mini": Shape(
        architecture="llama", n_vocab=32_064, n_ctx_train=4096,
        n_embd=3072, n_layer=32, n_head=32, n_head_kv=32, n_ff=8192,
    ),
    "mistral-7b": Shape(
        architecture="llama", n_vocab=32_000, n_ctx_train=32_768,
        n_embd=4096, n_layer=32, n_head=32, n_head_kv=8, n_ff=14_336,
    ),
    "phi-2": Shape(
        architecture="phi2", n_vocab=51_200, n_ctx_train=2048, n_rot=32, add_bos=False,
        n_embd=2560, n_layer=32, n_head=32, n_head_kv=32, n_ff=10_240,
    ),
    "qwen2.5-0.5b": _QWEN_HALF_B,
    "qwen2.5-1.5b": replace(_QWEN_HALF_B, n_embd=1536, n_layer=28, n_head=12, n_ff=8960),
    "qwen2.5-7b": replace(
        _QWEN_HALF_B, n_vocab=152_064, n_embd=3584, n_layer=28, n_head=28, n_head_kv=4, n_ff=18_944, is_tied=False
    ),
    "qwen2.5-3b": replace(_QWEN_HALF_B, n_embd=2048, n_layer=36, n_head=16, n_ff=11_008),
    "qwen2.5-14b": replace(
        _QWEN_HALF_B, n_vocab=152_064, n_embd=5120, n_layer=48, n_head=40, n_head_kv=8, n_ff=13_824, is_tied=False
    ),
    "qwen2.5-32b": replace(
        _QWEN_HALF_B, n_vocab=152_064, n_embd=5120, n_layer=64, n_head=40, n_head_kv=8, n_ff=27_648, is_tied=False
    ),
    "qwen2.5-72b": replace(
        _QWEN_HALF_B, n_vocab=152_064, n_embd=8192, n_layer=80, n_head=64, n_head_kv=8, n_ff=29_568, is_tied=False
    ),
    "qwen3-0.6b": _QWEN_3,
    "qwen3-1.7b": replace(_QWEN_3, n_embd=2048, n_ff=6144),
    "qwen3-4b": replace(_QWEN_3, n_embd=2560, n_layer=36, n_head=32, n_ff=9728),
    "qwen3-8b": replace(_QWEN_3, n_embd=4096, n_layer=36, n_head=32, n_ff=12_288, is_tied=False),
    "qwen3-14b": replace(_QWEN_3, n_embd=5120, n_layer=40, n_head=40, n_ff=17_408, is_tied=False),
    "qwen3-32b": replace(_QWEN_3, n_embd=5120, n_layer=64, n_head=64, n_ff=25_600, is_tied=False),
    "gemma-3-270m": replace(_GEMMA_1B, n_embd=640, n_layer=18, n_ff=2048),
    "gemma-3-1b": _GEMMA_1B,
    "gemma-3-4b": replace(
        _GEMMA_1B, n_vocab=262_208, n_ctx_train=131_072,
        n_embd=2560, n_layer=34, n_head=8, n_head_kv=4, n_ff=10_240, sliding_window=1024,
    ),
    "gemma-3-12b": replace(
        _GEMMA_1B, n_vocab=262_208, n_ctx_train=131_072,
        n_embd=3840, n_layer=48, n_head=16, n_head_kv=8, n_ff=15_360, sliding_window=1024,
    ),
    "gemma-3-27b": replace(
        _GEMMA_1B, n_vocab=262_208, n_ctx_train=131_072,
        n_embd=5376, n_layer=62, n_head=32, n_head_kv=16, n_ff=21_504, n_head_width=128, sliding_window=1024,
    ),
    "tiny": _TINY,
    "tiny-tied": Shape(
        architecture="qwen2", n_vocab=2048, n_ctx_train=1024, norm_eps=1e-6, rope_base=1_000_000, add_bos=False,
        n_embd=224, n_layer=9, n_head=7, n_head_kv=1, n_ff=512, is_tied=True,
    ),
    "tiny-phi": replace(_TINY, architecture="phi2", n_rot=16, add_bos=False, n_head_kv=4, n_ff=1024),
    "tiny-gemma": replace(
        _TINY, architecture="gemma3", n_vocab=2048, n_ctx_train=2048, norm_eps=1e-6, rope_base=1_000_000,
        n_head_kv=1, n_head_width=128, sliding_window=256, is_tied=True,
    ),
}  # fmt: skip
"""Shapes by name, with the dimensions in each model's config.json on the Hugging Face hub.

Qwen3 has norms of queries and keys besides, too small to count.
"""

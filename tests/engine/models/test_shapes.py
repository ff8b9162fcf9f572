"""Model shapes: consistent ones are accepted; what llama.cpp or a quantisation could not hold is refused by name."""

from dataclasses import replace

import pytest

from engine.errors import ConfigError
from engine.models.shapes import SHAPES, free_form, layers_like, shape_named


def test_names_are_known_and_others_refused() -> None:
    assert shape_named("llama-2-7b") is SHAPES["llama-2-7b"]
    assert SHAPES["tinyllama-1.1b"] == SHAPES["llama-1.1b-32k"]
    with pytest.raises(ConfigError, match=r"shape = 'llama': must be one of llama-1\.1b-32k, tinyllama"):
        shape_named("llama")


def test_free_form_fills_in_what_is_usual() -> None:
    assert free_form(layers=32, width=4096) == replace(SHAPES["llama-2-7b"], n_ff=11_008)
    narrow = free_form(layers=4, width=512)
    assert (narrow.n_head, narrow.n_head_kv, narrow.n_ff) == (8, 8, 1536)
    assert free_form(layers=4, width=512, heads=4, kv_heads=2, ff=96).n_embd_kv == 256


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ({"layers": 0, "width": 512}, "n_layer = 0: must be a whole number from 1"),
        ({"layers": 1 << 20, "width": 512}, "n_layer = 1048576"),
        ({"layers": 2, "width": 500}, "n_embd = 500: must be a multiple of 32"),
        ({"layers": 2, "width": 512, "heads": 3}, r"n_embd = 512: must be a multiple of 6 \(3 heads of even size\)"),
        ({"layers": 2, "width": 512, "heads": 8, "kv_heads": 3}, "n_head = 8: must be a multiple of 3"),
        ({"layers": 2, "width": 512, "heads": 8, "kv_heads": 16}, "n_head_kv = 16"),
        ({"layers": 2, "width": 512, "ff": 100}, "n_ff = 100: must be a multiple of 32"),
        ({"layers": 2, "width": 512, "vocab": 100}, "n_vocab = 100"),
        ({"layers": 2, "width": 1 << 20}, "n_embd = 1048576"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(numbers: dict[str, int], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        free_form(**numbers)


def test_heads_need_not_make_up_the_width_and_only_gemma_has_windows() -> None:
    gemma = SHAPES["gemma-3-1b"]
    assert (gemma.n_head_dim, gemma.n_embd_q, gemma.n_embd_kv) == (256, 1024, 256)
    with pytest.raises(ConfigError, match="n_head_width = 100: must be a multiple of 32"):
        replace(gemma, n_head_width=100)
    with pytest.raises(ConfigError, match="sliding_window = 64: must be 0 for llama"):
        replace(SHAPES["tiny"], sliding_window=64)


def test_layers_alone_keep_all_but_depth_and_vocabulary() -> None:
    whole = SHAPES["qwen2.5-1.5b"]
    cut = layers_like(whole, 5)
    assert (cut.n_layer, cut.n_vocab, cut.is_tied, cut.copies_of) == (1, 1024, False, (5, 28))
    assert replace(cut, n_layer=28, n_vocab=whole.n_vocab, is_tied=True, copies_of=None) == whole
    assert cut.summary == "qwen2, 1 layer of 1,536"
    assert layers_like(whole, 5, 2) == replace(cut, n_layer=2)

"""Models described in words: which model a text means, and the errors for what is missing or cannot be planned."""

import pytest

from engine.errors import ConfigError
from engine.models import memory
from engine.models.catalogue import read_catalogue
from engine.models.described import SMALLER, described, smaller_that_fits
from engine.models.experts import active_parameters, experts_of, weights_read
from engine.models.fit import fit_row
from engine.models.planned import planned_model
from engine.models.shapes import SHAPES
from engine.models.synthetic import PLANNED
from engine.specs import PoolSpec

TEXT = [entry for entry in read_catalogue().entries if entry.kind == "text"]


@pytest.mark.parametrize(
    ("text", "title", "shape"),
    [
        ("mistral 7b q4", "Mistral 7B at Q4_K_M", "mistral-7b"),
        ("q4 mistral 7B", "Mistral 7B at Q4_K_M", "mistral-7b"),
        ("mistral7b", "Mistral 7B at Q4_K_M", "mistral-7b"),
        ("Mistral-7B-Instruct-v0.2.Q5_K_M.gguf", "Mistral 7B at Q5_K_M", "mistral-7b"),
        ("llama 3 70b", "Llama 3 70B at Q4_K_M", "llama-3-70b"),
        ("Llama-3.3-70B q4km", "Llama 3.1 70B at Q4_K_M", "llama-3.1-70b"),
        ("llama-2-7b.Q8_0", "Llama 2 7B at Q8_0", "llama-2-7b"),
        ("llama 13b 8-bit", "Llama 2 13B at Q8_0", "llama-2-13b"),
        ("qwen2.5 7b fp16", "Qwen2.5 7B at F16", "qwen2.5-7b"),
        ("Qwen3-4B-Q6_K", "Qwen3 4B at Q6_K", "qwen3-4b"),
        ("gemma 3 4b q4_0", "Gemma 3 4B at Q4_0", "gemma-3-4b"),
        ("phi-2 int4", "Phi-2 at Q4_K_M", "phi-2"),
        ("tinyllama q3", "TinyLlama 1.1B at Q3_K_M", "tinyllama-1.1b"),
        ("mistral nemo 12b iq4_xs", "Mistral Nemo 12B at IQ4_XS", "mistral-nemo-12b"),
        ("13b q5_k_m", "A 13B model at Q5_K_M", "llama-2-13b"),
        ("7b", "A 7B model at Q4_K_M", "mistral-7b"),
        ("q8 0.5b", "A 500M model at Q8_0", "qwen2.5-0.5b"),
        ("1b q4 0", "A 1B model at Q4_K_M", "llama-3.2-1b"),
    ],
)
def test_what_people_type_is_the_model_that_they_mean(text: str, title: str, shape: str) -> None:
    found = described(text)
    assert found.title == title
    assert not found.is_scaled
    quantisation = title.rpartition(" at ")[2]
    expected = planned_model(found.model.name, SHAPES[shape], quantisation)
    assert found.model == expected


@pytest.mark.parametrize(
    ("text", "size", "source"),
    [
        ("30b q4", 30e9, "Qwen2.5 32B"),
        ("falcon 40b", 40e9, "Qwen2.5 32B"),
        ("llama 33b q8", 33e9, "Llama 3.1 70B"),
        ("codellama 34b", 34e9, "Llama 2 70B"),
        ("phi 14b q6", 14e9, "Phi-3 mini"),
        ("2b", 2e9, "Qwen3 1.7B"),
        ("200m f16", 200e6, "Gemma 3 270M"),
        ("1000b q4", 1e12, "Llama 3.1 405B"),
    ],
)
def test_other_sizes_are_scaled_from_the_nearest_and_say_so(text: str, size: float, source: str) -> None:
    found = described(text)
    assert found.is_scaled and found.entry is None
    assert f"dimensions scaled from {source}" in found.basis
    assert found.model.num_parameters == pytest.approx(size, rel=0.05)


@pytest.mark.parametrize(
    ("text", "title", "num_parameters", "active", "num_bytes"),
    [
        ("mixtral 8x7b q4", "Mixtral 8x7B at Q4_K_M", 46.7e9, 12.9e9, 28.4e9),
        ("Mixtral-8x22B-Instruct-v0.1.Q8_0.gguf", "Mixtral 8x22B at Q8_0", 140.6e9, 39.1e9, 149.4e9),
        ("qwen3 30b a3b q4", "Qwen3 30B A3B at Q4_K_M", 30.5e9, 3.3e9, 18.6e9),
        ("Qwen3-Coder-30B-A3B-Q8_0", "Qwen3 30B A3B at Q8_0", 30.5e9, 3.3e9, 32.5e9),
        ("qwen3 235b q4", "Qwen3 235B A22B at Q4_K_M", 235.1e9, 22.2e9, 142.2e9),
        ("olmoe q4", "OLMoE 7B A1B at Q4_K_M", 6.92e9, 1.28e9, 4.21e9),
        ("phi 3.5 moe q8", "Phi-3.5 MoE at Q8_0", 41.9e9, 6.64e9, 44.5e9),
        ("gpt-oss 20b q8", "GPT-OSS 20B at Q8_0", 20.9e9, 4.18e9, 12.1e9),
    ],
)
def test_a_published_mixture_of_experts_has_the_published_sizes(
    text: str, title: str, num_parameters: float, active: float, num_bytes: float
) -> None:
    found = described(text)
    assert found.title == title and not found.is_scaled
    assert found.model.num_parameters == pytest.approx(num_parameters, rel=0.005)
    assert active_parameters(found.model) == pytest.approx(active, rel=0.02)
    assert found.model.size == pytest.approx(num_bytes, rel=0.01)
    assert described(title).model == found.model


@pytest.mark.parametrize(
    ("text", "title", "experts", "num_parameters", "active"),
    [
        ("8x7b", "An 8x7B model at Q4_K_M", (8, 2), 46.7e9, 12.9e9),
        ("30b a3b q8", "A 30B A3B model at Q8_0", (128, 8), 30.5e9, 3.3e9),
        ("mistral 4x7b q4", "A 4x7B model at Q4_K_M", (4, 2), 24.2e9, 12.9e9),
        ("80b a3b q4", "An 80B A3B model at Q4_K_M", (299, 8), 80e9, 3.2e9),
        ("deepseek v3 671b a37b q4", "A 671B A37B model at Q4_K_M", (172, 8), 671e9, 37e9),
    ],
)
def test_other_mixtures_are_planned_from_experts_or_active_parameters(
    text: str, title: str, experts: tuple[int, int], num_parameters: float, active: float
) -> None:
    found = described(text)
    assert found.title == title
    of = experts_of(found.model)
    assert of is not None and (of.total, of.used) == experts
    assert found.model.num_parameters == pytest.approx(num_parameters, rel=0.05)
    assert active_parameters(found.model) == pytest.approx(active, rel=0.1)


def test_the_experts_that_a_token_uses_decide_the_speed_and_all_of_them_the_memory() -> None:
    mixture, dense = described("mixtral 8x7b q4").model, described("13b q4").model
    assert weights_read(mixture, 1) == pytest.approx(weights_read(dense, 1), rel=0.1)
    assert fit_row(mixture, 4096, 1).weights > 3 * fit_row(dense, 4096, 1).weights
    assert experts_of(dense) is None and active_parameters(dense) == dense.num_parameters


@pytest.mark.parametrize("entry", TEXT, ids=lambda entry: entry.name)
def test_the_catalogue_is_understood_as_its_titles_are_written(entry: object) -> None:
    assert entry in TEXT
    for one in (one for one in TEXT if one is entry):
        found = described(f"{one.title} {one.quantisation}")
        assert found.entry == one
        model = found.model
        assert (model.n_layer, model.n_head_kv[0], model.head_k) == (one.n_layer, one.n_head_kv, one.head_size)
        # The files of the two small Qwen2.5 hold the embeddings a second time, as the output matrix.
        is_doubled = one.name in ("qwen2.5-0.5b", "qwen2.5-1.5b")
        assert model.weights_bytes == pytest.approx(one.size_bytes, rel=0.21 if is_doubled else 0.02)


def test_the_basis_names_what_was_not_said() -> None:
    assert described("mistral 7b q4").basis == "dimensions of Mistral 7B"
    assert "Q4_K_M, as no quantisation is named" in described("mistral 7b").basis
    assert "dimensions of Llama 2 13B, as no family is named" in described("13b q5_k_m").basis


@pytest.mark.parametrize("quantisation", PLANNED)
def test_every_quantisation_can_be_named_and_larger_ones_need_more(quantisation: str) -> None:
    found = described(f"llama 3.1 8b {quantisation.lower()}")
    assert found.model.quantisation == quantisation
    assert fit_row(found.model, 4096, 1).total > found.model.weights_bytes
    assert found.model.weights_bytes <= described("llama 3.1 8b f32").model.weights_bytes


@pytest.mark.parametrize("text", ["llama 3 70b f16", "30b q8", "qwen2.5 7b q6"])
def test_the_largest_smaller_quantisation_that_fits_is_found(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, spec = described(text), PoolSpec()
    assert described(found.title).model == found.model
    totals = {name: fit_row(described(f"{found.model.name} {name}").model, 4096, 1, spec).total for name in SMALLER}
    monkeypatch.setattr(memory, "available_memory", lambda: totals["Q5_K_M"])
    smaller = smaller_that_fits(found, 4096, 1, spec)
    assert smaller is not None and smaller.model.quantisation == "Q5_K_M"
    monkeypatch.setattr(memory, "available_memory", lambda: totals["Q2_K"] - 1)
    assert smaller_that_fits(found, 4096, 1, spec) is None
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 60)
    assert smaller_that_fits(described("7b q2_k"), 4096, 1, spec) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Type a model in up to 300 characters"),
        ("x" * 301, "Type a model in up to 300 characters"),
        ("mistral", "the number of parameters is missing. Add it; models of this family have 7B, 12B, 24B"),
        ("hello", "the number of parameters is missing. Type a model such as mistral 7b q4"),
        ("q4", "the number of parameters is missing"),
        ("7b q7", "'q7' is no quantisation of llama.cpp"),
        ("7b iq2_m", "quantisation = 'IQ2_M': must be one of Q4_K_M"),
        ("mixtral", "models of this family have Mixtral 8x7B, Mixtral 8x22B"),
        ("671b", "is a mixture of experts: add how many of its parameters a token uses"),
        ("moe 7b", "is a mixture of experts"),
        ("gpt-oss 50b", "is a mixture of experts"),
        ("3b a30b", "a token cannot use all of 3B parameters"),
        ("1000b a1b", "models can be planned with 8 to 512"),
        ("1x7b", "a mixture of 1 experts"),
        ("5m", "models can be planned from 50M to 2,000B"),
        ("9999b", "models can be planned from 50M to 2,000B"),
    ],
)
def test_what_is_missing_or_cannot_be_planned_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="^") as caught:
        described(text)
    assert said in str(caught.value)

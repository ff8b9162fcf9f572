"""Catalogue against known shapes, and the files of a repository that are offered."""

import math

import pytest

from engine.errors import ConfigError
from engine.models.catalogue import READABLE_PER_S, TORCH_BYTES, Entry, choices, choose, read_catalogue
from engine.models.hub import Repository
from engine.models.incoming import RemoteFile
from engine.models.shapes import shape_named
from engine.models.synthetic import weights_bytes

CATALOGUE = read_catalogue()
TEXT = [entry for entry in CATALOGUE.entries if entry.kind == "text"]
EMBEDDING = [entry for entry in CATALOGUE.entries if entry.kind == "embedding"]
KNOWN = {
    "llama-2-7b": "llama-2-7b",
    "mistral-7b-q4": "mistral-7b",
    "mistral-7b-q5": "mistral-7b",
    "phi-2": "phi-2",
    "tinyllama-1.1b": "tinyllama-1.1b",
    "qwen2.5-0.5b": "qwen2.5-0.5b",
    "qwen2.5-1.5b": "qwen2.5-1.5b",
}
"""Names of shapes in SHAPES, by name of the entry."""

WITH_TWO_EMBEDDINGS = ("qwen2.5-0.5b", "qwen2.5-1.5b")
"""Entries whose files contain the embeddings a second time, as the output matrix."""


def repository(*paths: str, name: str = "somebody/something") -> Repository:
    """Return a repository with files of 100, 101, 102, … bytes."""
    files = (RemoteFile(path, 100 + index, f"{index:064x}", "") for index, path in enumerate(paths))
    return Repository(name, "0" * 40, "mit", False, tuple(files))


def test_the_models_of_the_notes_and_the_families_named_are_there() -> None:
    names = " ".join(entry.name for entry in CATALOGUE.entries)
    for wanted in (
        "llama-2-7b",
        "phi-2",
        "xlam-1b",
        "qwen2.5",
        "qwen3",
        "smollm2",
        "tinyllama",
        "llama-3.2",
        "gemma-3",
    ):
        assert wanted in names
    for wanted in ("bge", "multilingual-e5-large-instruct", "nomic", "all-minilm"):
        assert any(wanted in entry.name for entry in EMBEDDING)
    mistral = [entry.quantisation for entry in TEXT if "Mistral-7B-Instruct-v0.2" in entry.repository]
    assert mistral == ["Q4_K_M", "Q5_K_M"]
    assert len({entry.name for entry in CATALOGUE.entries}) == len(CATALOGUE.entries)
    assert CATALOGUE.dated[:2] == "20" and CATALOGUE.source


@pytest.mark.parametrize("free_gb", [0.1, 2, 64])
@pytest.mark.parametrize("bandwidth", [math.nan, 1e8, 15e9, 1e12])
def test_the_picks_are_the_largest_of_those_that_fit_and_of_those_that_are_fast_too(
    free_gb: float, bandwidth: float
) -> None:
    free = int(free_gb * 1e9)
    fitting = [entry for entry in TEXT if entry.needed_bytes() <= free]
    fast = [entry for entry in fitting if entry.tokens_per_s(bandwidth) >= READABLE_PER_S]
    for found, among in zip(CATALOGUE.picks(free, bandwidth), (fitting, fast), strict=True):
        assert (found is None) == (not among)
        assert found is None or found.num_parameters == max(entry.num_parameters for entry in among)


@pytest.mark.parametrize("name", KNOWN)
def test_an_entry_says_of_its_shape_what_is_known_of_it(name: str) -> None:
    entry, shape = CATALOGUE.named(name), shape_named(KNOWN[name])
    said = (entry.n_layer, entry.n_head_kv, entry.head_size, entry.n_ctx_train)
    assert said == (shape.n_layer, shape.n_head_kv, shape.n_head_dim, shape.n_ctx_train)


@pytest.mark.parametrize("name", [name for name in KNOWN if name not in WITH_TWO_EMBEDDINGS])
def test_the_size_of_an_entry_is_that_of_its_weights_and_a_vocabulary(name: str) -> None:
    entry = CATALOGUE.named(name)
    weights = weights_bytes(shape_named(KNOWN[name]), entry.quantisation)
    assert -0.005 < entry.size_bytes / weights - 1 < 0.01


@pytest.mark.parametrize("entry", TEXT, ids=lambda entry: entry.name)
def test_bits_for_each_weight_suit_the_quantisation(entry: Entry) -> None:
    low, high = {"Q4_K_M": (4.5, 8.0), "Q5_K_M": (5.5, 6.5), "Q8_0": (8.4, 8.7)}[entry.quantisation]
    assert low < 8 * entry.size_bytes / entry.num_parameters < high


def test_what_a_text_model_needs_grows_with_the_context_up_to_what_it_was_trained_for() -> None:
    entry = CATALOGUE.named("llama-2-7b")
    cache = entry.needed_bytes(4096) - entry.needed_bytes(2048)
    assert cache == 2 * 2 * 32 * 32 * 128 * 2048
    assert entry.needed_bytes(8192) == entry.needed_bytes(4096)
    assert entry.needed_bytes(2048) > entry.size_bytes + cache
    folder = CATALOGUE.named("all-minilm-l6-v2")
    assert folder.needed_bytes() == folder.needed_bytes(64) == folder.size_bytes + TORCH_BYTES


def test_speed_is_the_roofline_of_its_kind() -> None:
    text, embedding = CATALOGUE.named("mistral-7b-q4"), CATALOGUE.named("all-minilm-l6-v2")
    assert text.tokens_per_s(43.7e9) == pytest.approx(10)
    assert math.isnan(text.texts_per_s(1e11))
    assert embedding.texts_per_s(2 * 10.6e6 * 1000, 100) == pytest.approx(10)
    assert math.isnan(embedding.tokens_per_s(1e10))


def test_a_name_that_is_not_there_is_refused_with_those_that_are() -> None:
    assert CATALOGUE.named(" Phi-2 ").title == "Phi-2"
    with pytest.raises(ConfigError, match="'gpt' is not in the catalogue.*smollm2-135m, "):
        CATALOGUE.named("gpt")


def test_an_entry_with_absurd_figures_is_refused() -> None:
    entry = CATALOGUE.named("phi-2").to_dict()
    for wrong in ({"size_gb": -1}, {"n_layer": 0}, {"kind": "picture"}, {"quantisation": "Q4_KM"}, {"sise": 1}):
        with pytest.raises(ConfigError):
            Entry.from_dict(entry | wrong)


@pytest.mark.parametrize(
    ("name", "quantisation"),
    [
        ("llama-2-7b.Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("Q8_0/big-q8_0.gguf", "Q8_0"),
        ("nomic-embed-text-v1.5.f16.gguf", "F16"),
        ("model-UD-Q4_K_XL.gguf", ""),
        ("model-iq2_xxs.gguf", "IQ2_XXS"),
        ("model.gguf", ""),
    ],
)
def test_the_quantisation_is_read_from_the_name(name: str, quantisation: str) -> None:
    (choice,) = choices(repository(name))
    assert (choice.name, choice.quantisation) == (name, quantisation)


def test_a_split_model_is_one_choice_and_an_incomplete_one_none() -> None:
    parts = [f"big-Q8_0-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    (choice,) = choices(repository(*reversed(parts)))
    assert [file.path for file in choice.files] == parts
    assert (choice.num_bytes, choice.quantisation) == (303, "Q8_0")
    assert choices(repository(parts[0], parts[2])) == ()
    assert choices(repository("x-00001-of-99999.gguf")) == ()


def test_what_is_not_a_model_by_itself_is_not_offered() -> None:
    offered = choices(repository("mmproj-F16.gguf", "imatrix.gguf", "README.md", "a.Q8_0.gguf"))
    assert [choice.name for choice in offered] == ["a.Q8_0.gguf"]


def test_a_folder_for_sentence_transformers_is_what_that_reads() -> None:
    needed = ["modules.json", "config.json", "model.safetensors", "vocab.txt", "1_Pooling/config.json"]
    other = ["pytorch_model.bin", "onnx/model.onnx", "openvino/config.json", "README.md", "tf_model.h5"]
    (choice,) = choices(repository(*other, *needed, name="BAAI/bge"))
    assert (choice.name, choice.kind, [file.path for file in choice.files]) == ("bge", "folder", needed)


def test_pickles_are_not_offered() -> None:
    assert choices(repository("modules.json", "config.json", "pytorch_model.bin")) == ()
    with pytest.raises(ConfigError, match="no GGUF file and no sentence-transformers folder"):
        choose(repository("pytorch_model.bin"))


def test_a_choice_is_made_by_quantisation_or_name_and_asked_for_where_several_fit() -> None:
    several = repository("a.Q4_K_M.gguf", "a.Q8_0.gguf", "b.Q8_0.gguf")
    assert choose(several, "q4_k_m").name == "a.Q4_K_M.gguf"
    assert choose(several, "b.Q8_0.gguf").name == "b.Q8_0.gguf"
    for wanted, said in (("Q8_0", "2 models match"), ("Q6_K", "no model matches"), ("", "3 models match")):
        with pytest.raises(ConfigError, match=f"{said}.*a.Q4_K_M.gguf"):
            choose(several, wanted)
    assert choose(repository("only.gguf")).name == "only.gguf"

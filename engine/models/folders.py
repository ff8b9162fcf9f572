"""Model folders, as Hugging Face publishes them: configuration and weights as safetensors, read without PyTorch.

What could run code is refused: pickled weights, and Python files that a configuration names.
"""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine.errors import ModelError
from engine.files import decoded_json, read_regular
from engine.models.gguf import MAX_LAYERS, MAX_PARTS, ModelFile
from engine.models.header import MAX_KEPT_TEMPLATE, MAX_KEPT_TEXT, TensorInfo, Value
from engine.models.safetensors import read_tensors

CONFIG, TOKENIZER, TOKENIZER_CONFIG, TEMPLATE = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
)  # fmt: skip
GENERATION_CONFIG = "generation_config.json"
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
MOST_CONFIG_BYTES = 4 << 20
_MOST_INDEX_BYTES = 64 << 20
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_GENERATING = ("ForCausalLM", "LMHeadModel")
"""Ends of the names of classes that predict the next token of a text."""

_Count = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


class _Shape(msgspec.Struct):
    """Dimensions in a config.json, under their usual names and those of GPT-2."""

    model_type: str
    architectures: list[str]
    vocab_size: _Count
    hidden_size: _Count | None = None
    n_embd: _Count | None = None
    num_hidden_layers: _Count | None = None
    n_layer: _Count | None = None
    num_attention_heads: _Count | None = None
    n_head: _Count | None = None
    num_key_value_heads: _Count | None = None
    head_dim: _Count | None = None
    intermediate_size: _Count | None = None
    n_inner: _Count | None = None
    max_position_embeddings: _Count | None = None
    n_positions: _Count | None = None
    sliding_window: _Count | None = None
    use_sliding_window: bool | None = None


def is_model_folder(path: Path) -> bool:
    """Return True for a folder with a configuration and weights as safetensors, whether or not it can be run."""
    # os.path.isfile is False, not an error, for a name that is too long
    return os.path.isfile(path / CONFIG) and any(os.path.isfile(path / name) for name in (WEIGHTS, WEIGHTS_INDEX))


def read_folder(path: Path) -> ModelFile:
    """Read configuration and headers of a model folder.

    Raises ModelError naming the reason where the folder is damaged or incomplete, needs code of its own, has quantised
    or pickled weights, or holds no model that predicts the next token.
    """
    config = read_config(path, CONFIG, is_needed=True)
    _check_harmless(path, config)
    try:
        shape = msgspec.convert(config, _Shape)
    except ValueError as error:
        raise ModelError(f"{path / CONFIG}: describes no language model ({error})") from error
    if not any(name.endswith(_GENERATING) for name in shape.architectures):
        named = ", ".join(shape.architectures)[:200] or "no architecture"
        raise ModelError(f"{path / CONFIG}: names {named}, which does not predict the next token of a text")
    if not (path / TOKENIZER).is_file():
        raise ModelError(f"{path}: has no {TOKENIZER}, which is needed to read and write text")
    names = _weights(path)
    tensors = tuple(tensor for name in names for tensor in read_tensors(path / name))
    return _model(path, shape, config, names, tensors)


def read_config(path: Path, name: str, *, is_needed: bool = False) -> dict[str, Any]:
    """Return a JSON file of the folder; empty where it is absent, unless it `is_needed`. Raises ModelError."""
    try:
        return decoded_json(read_regular(path / name, MOST_CONFIG_BYTES), dict[str, Any])
    except FileNotFoundError as error:
        if not is_needed:
            return {}
        raise ModelError(f"{path}: is a folder without {name}, so it holds no model") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path / name}: cannot be read ({error}): download it again") from error


def chat_template(path: Path) -> str:
    """Return the chat template of a folder; empty where it has none, or one too long to be read. Raises ModelError."""
    try:
        found: object = read_regular(path / TEMPLATE, MAX_KEPT_TEMPLATE).decode()
    except (OSError, ValueError):
        found = read_config(path, TOKENIZER_CONFIG).get("chat_template")
    if isinstance(found, list):  # several, each with a name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) and len(found) <= MAX_KEPT_TEMPLATE else ""


def _check_harmless(path: Path, config: Mapping[str, Any]) -> None:
    for name, values in ((CONFIG, config), (TOKENIZER_CONFIG, read_config(path, TOKENIZER_CONFIG))):
        if "auto_map" in values:
            raise ModelError(
                f"{path / name}: asks to run Python code that comes with the model (auto_map), which is never done. "
                "Choose a model whose architecture transformers has itself, or its GGUF file"
            )
    if "quantization_config" in config:
        raise ModelError(
            f"{path}: its weights are quantised, in a form that runs on GPUs only. Choose the original model, or its "
            "GGUF file"
        )
    if (path / "adapter_config.json").exists():
        raise ModelError(f"{path}: has an adapter (adapter_config.json), which is not applied: merge it into the model")


def _weights(path: Path) -> list[str]:
    """Return the names of the files of weights."""
    if (path / WEIGHTS).is_file():
        return [WEIGHTS]
    if not (path / WEIGHTS_INDEX).is_file():
        pickled = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
        if pickled:
            raise ModelError(
                f"{path}: its weights are pickled ({pickled[0][:200]}); pickles can run any code, so they are never "
                "loaded. Get the model as safetensors"
            )
        raise ModelError(f"{path}: has no weights: neither {WEIGHTS} nor {WEIGHTS_INDEX}")
    try:
        index = decoded_json(read_regular(path / WEIGHTS_INDEX, _MOST_INDEX_BYTES), dict[str, Any])
        names = sorted(set(msgspec.convert(index.get("weight_map"), dict[str, str]).values()))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path / WEIGHTS_INDEX}: cannot be read ({error}): download it again") from error
    if not names or len(names) > MAX_PARTS:
        raise ModelError(f"{path / WEIGHTS_INDEX}: names {len(names):,} files; it must be 1 to {MAX_PARTS:,}")
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"{path / WEIGHTS_INDEX}: names {name[:200]!r}, which is no safetensors file beside it")
        if not (path / name).is_file():
            raise ModelError(f"{path}: {name[:200]} is missing: download it again")
    return names


def _model(
    path: Path, shape: _Shape, config: Mapping[str, Any], weights: list[str], tensors: tuple[TensorInfo, ...]
) -> ModelFile:
    n_embd = _given(path, "hidden_size", shape.hidden_size, shape.n_embd)
    n_layer = _given(path, "num_hidden_layers", shape.num_hidden_layers, shape.n_layer)
    n_head = _given(path, "num_attention_heads", shape.num_attention_heads, shape.n_head)
    if n_layer > MAX_LAYERS:
        raise ModelError(f"{path / CONFIG}: num_hidden_layers is {n_layer:,}; at most {MAX_LAYERS:,} are allowed")
    num_parameters = sum(tensor.num_values for tensor in tensors)
    n_ff = shape.intermediate_size or shape.n_inner or 4 * n_embd
    if n_embd * max(shape.vocab_size, n_ff) > num_parameters:
        raise ModelError(f"{path / CONFIG}: describes a larger network than the weights beside it have")
    head = shape.head_dim or max(n_embd // n_head, 1)
    types: Counter[str] = Counter()
    for tensor in tensors:
        types[tensor.type.name] += tensor.num_values
    settings = CONFIG, TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, GENERATION_CONFIG
    used = [name for name in settings if (path / name).is_file()]
    return ModelFile(
        path=path,
        size=sum((path / name).stat().st_size for name in weights),
        parts=len(weights),
        architecture=shape.model_type,
        name=_name(path),
        quantisation=types.most_common(1)[0][0] if types else "",
        license="",
        num_parameters=num_parameters,
        n_vocab=shape.vocab_size,
        n_ctx_train=_given(path, "max_position_embeddings", shape.max_position_embeddings, shape.n_positions),
        n_embd=n_embd,
        n_layer=n_layer,
        n_ff=n_ff,
        n_head=n_head,
        n_head_kv=(shape.num_key_value_heads or n_head,) * n_layer,
        head_k=head,
        head_v=head,
        sliding_window=0 if shape.use_sliding_window is False else shape.sliding_window or 0,
        chat_template=chat_template(path),
        metadata={name: value for name, value in config.items() if _is_kept(value)},
        tensors=tensors,
        folder_files=(*weights, *used),
    )


def _given(path: Path, name: str, *values: int | None) -> int:
    found = next((value for value in values if value is not None), None)
    if found is None:
        raise ModelError(f"{path / CONFIG}: {name} is missing")
    return found


def _is_kept(value: Value | object) -> bool:
    return isinstance(value, int | float | bool) or (isinstance(value, str) and len(value) <= MAX_KEPT_TEXT)


def _name(path: Path) -> str:
    """Return owner/name for a folder in the hub's cache, else the folder's own name."""
    if path.parent.name == "snapshots":
        return path.parents[1].name.removeprefix("models--").replace("--", "/")
    return path.name

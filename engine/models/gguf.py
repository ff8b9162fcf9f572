"""Metadata of a GGUF model file, read in some ten milliseconds, without loading the model."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError
from engine.models.budget import Budget
from engine.models.ggml import FILE_TYPES
from engine.models.header import FIRST_PART_NAME, Header, TensorInfo, Value, read_header

MAX_LAYERS = 1 << 10
MAX_PARTS = 1 << 10


@dataclass(frozen=True)
class ModelFile:
    """Model file on disk; `size` in bytes, summed over `parts` (files) where the model is split.

    n_head_kv has the number of KV heads of each layer (0 in a layer without attention); head_k and head_v are the
    lengths of a head's key and value; sliding_window is 0 where the model attends to its whole context.
    `metadata` holds the scalars and short numeric arrays of the header. `chat_template` is empty where the file has
    none, or one too long to be read. folder_files: the names of its files where `path` is a folder (see
    engine.models.folders), weights first; empty for a GGUF file.
    """

    path: Path
    size: int
    parts: int
    architecture: str
    name: str
    quantisation: str
    license: str
    num_parameters: int
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_ff: int
    n_head: int
    n_head_kv: tuple[int, ...]
    head_k: int
    head_v: int
    sliding_window: int
    chat_template: str
    metadata: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    folder_files: tuple[str, ...] = ()

    @property
    def is_folder(self) -> bool:
        """True for a folder of safetensors, which only transformers runs; False for a GGUF file."""
        return bool(self.folder_files)

    @property
    def engine(self) -> str:
        """Name of what runs it unless a pool's dtype says otherwise: "llama.cpp" or "transformers"."""
        return "transformers" if self.is_folder else "llama.cpp"

    @property
    def is_synthetic(self) -> bool:
        """True for models of random weights, generated to measure speed."""
        return self.metadata.get("logitbench.synthetic") is True

    def whole(self, key: str, default: int = 0) -> int:
        """Return an integer of this architecture from the header, such as "expert_count"; else the default."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int) and 0 <= value < 1 << 31 else default

    @property
    def files(self) -> tuple[Path, ...]:
        """Paths of this file, and of the other parts where the model is split; of a folder its files, weights first."""
        if self.is_folder:
            return tuple(self.path / name for name in self.folder_files)
        return (self.path, *(_part(self.path, number, self.parts) for number in range(2, self.parts + 1)))

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.num_bytes for tensor in self.tensors)


def read_gguf(path: Path) -> ModelFile:
    """Read the header of a GGUF file, and of its other parts where it is split.

    Raises ModelError naming file and reason when the file is missing, damaged, truncated, or holds no language model.
    """
    budget = Budget()
    header = read_header(path, budget)
    facts = _Facts(path, header)
    architecture = facts.architecture()
    tensors, size, parts = _with_other_parts(path, header, budget)
    if not tensors:
        raise ModelError(f"{path}: has no weights, only a header")
    n_embd = facts.whole("embedding_length", 1, 1 << 24)
    n_layer = facts.whole("block_count", 1, MAX_LAYERS)
    n_head = max(facts.per_layer("attention.head_count", n_layer, (0,) * n_layer))
    head = n_embd // n_head if n_head else 0
    return ModelFile(
        path=path,
        size=size,
        parts=parts,
        architecture=architecture,
        name=facts.text("general.name") or path.stem,
        quantisation=_quantisation(header, tensors),
        license=facts.text("general.license"),
        num_parameters=sum(tensor.num_values for tensor in tensors),
        n_vocab=header.array_lengths.get("tokenizer.ggml.tokens") or facts.whole("vocab_size", 0, 1 << 28, 0),
        n_ctx_train=facts.whole("context_length", 1, 1 << 31),
        n_embd=n_embd,
        n_layer=n_layer,
        n_ff=max(facts.per_layer("feed_forward_length", n_layer, (0,) * n_layer)),
        n_head=n_head,
        n_head_kv=facts.per_layer("attention.head_count_kv", n_layer, (n_head,) * n_layer),
        head_k=facts.whole("attention.key_length", 0, 1 << 20, head),
        head_v=facts.whole("attention.value_length", 0, 1 << 20, head),
        sliding_window=facts.whole("attention.sliding_window", 0, 1 << 31, 0),
        chat_template=facts.text("tokenizer.chat_template"),
        metadata=header.metadata,
        tensors=tensors,
    )


class _Facts:
    """Validated access to the header's values."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.metadata = header.metadata

    def architecture(self) -> str:
        kind = self.text("general.type") or "model"
        if kind != "model":
            raise ModelError(f"{self.path}: general.type is {kind!r}, not a model that can be run by itself")
        name = self.text("general.architecture")
        if not name:
            raise ModelError(f"{self.path}: has no general.architecture, so it is not a language model")
        return name

    def text(self, key: str) -> str:
        value = self.metadata.get(key, "")
        return value if isinstance(value, str) else ""

    def whole(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer of the architecture; without a default it must be present."""
        value = self.of_architecture(key)
        if value is None and default is not None:
            return default
        return self.checked(key, value, low, high)

    def per_layer(self, key: str, n_layer: int, default: tuple[int, ...]) -> tuple[int, ...]:
        """Return one integer per layer; the file may give one for all."""
        value = self.of_architecture(key)
        if value is None:
            return default
        if not isinstance(value, tuple):
            return (self.checked(key, value, 0, 1 << 24),) * n_layer
        if len(value) < n_layer:
            raise ModelError(f"{self.path}: {key} has {len(value):,} values for {n_layer:,} layers")
        return tuple(self.checked(key, one, 0, 1 << 24) for one in value[:n_layer])

    def of_architecture(self, key: str) -> Value | None:
        return self.metadata.get(f"{self.text('general.architecture')}.{key}")

    def checked(self, key: str, value: Value | None, low: int, high: int) -> int:
        if type(value) is not int or not low <= value <= high:
            said = "is missing" if value is None else f"is {value!r}"
            raise ModelError(f"{self.path}: {key} {said}; it must be a whole number from {low:,} to {high:,}")
        return value


def _with_other_parts(path: Path, header: Header, budget: Budget) -> tuple[tuple[TensorInfo, ...], int, int]:
    """Return tensors, bytes and number of files of the whole model."""
    count, index = header.metadata.get("split.count", 0), header.metadata.get("split.no", 0)
    size = path.stat().st_size
    if type(count) is not int or count <= 1:
        return header.tensors, size, 1
    named = FIRST_PART_NAME.search(path.name)
    if index != 0 or count > MAX_PARTS or named is None or int(named[1]) != count:
        raise ModelError(
            f"{path}: is one of the {count:,} parts of a model; open the one named …-00001-of-{count:05}.gguf"
        )
    tensors = list(header.tensors)
    for part in range(2, count + 1):
        other = _part(path, part, count)
        tensors += read_header(other, budget).tensors
        size += other.stat().st_size
    return tuple(tensors), size, count


def _part(path: Path, number: int, count: int) -> Path:
    """Return the path of file `number`, from 1, of a model in `count` files whose first is `path`."""
    return path.with_name(FIRST_PART_NAME.sub("", path.name) + f"-{number:05}-of-{count:05}.gguf")


def _quantisation(header: Header, tensors: tuple[TensorInfo, ...]) -> str:
    """Return the declared file type, else the tensor type with most of the weights."""
    declared = header.metadata.get("general.file_type")
    if isinstance(declared, int) and declared in FILE_TYPES:
        return FILE_TYPES[declared]
    weights: Counter[str] = Counter()
    for tensor in tensors:
        weights[tensor.type.name] += tensor.num_values
    return weights.most_common(1)[0][0]

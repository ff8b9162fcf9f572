"""Every parser of foreign input: what it is given, and valid input to begin with."""

import io
import json
import random
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import set_client_factory
from huggingface_hub.utils import close_session
from huggingface_hub.utils._http import default_client_factory

from engine.bench.planning.axes import AXES_BY_NAME, parse_values
from engine.bench.planning.plan import Plan
from engine.bench.planning.plan_file import plan_from_json, plan_to_json
from engine.cost.documents import count_texts
from engine.cost.prices import read_prices
from engine.embedding.models import find_model
from engine.errors import ConfigError
from engine.exchange.foreign_files import is_archive, read_arrival
from engine.exchange.llama_bench_text import FORMATS, read_rows, write_rows
from engine.exchange.text_files import read_texts
from engine.history import History, export_history, run_bytes
from engine.history.archives.members import telling
from engine.history.archives.reading import stage_archive
from engine.history.archives.staging import StagingWriter
from engine.history.export import family_to_json, to_json
from engine.history.filters import Filter
from engine.history.run_columns import sample_table
from engine.history.trial_file import trial_bytes
from engine.llama.sandbox import Sandbox
from engine.models import read_model
from engine.models.catalogue import choices
from engine.models.gguf import ModelFile
from engine.models.hub import parse_address, read_repository
from engine.models.imatrix import read_imatrix
from engine.models.library import embedded_model, shipped
from engine.models.safetensors import read_tensors
from engine.specs import Sampling
from engine.vocabulary import Vocabulary
from tests.engine.exchange.test_llama_bench_files import row
from tests.engine.exchange.test_logs import CANDIDATES, block
from tests.engine.history.run_maker import make_run
from tests.engine.history.trial_maker import make_trial, with_stages
from tests.engine.models.headers import gguf
from tests.engine.models.test_importance_matrix import write_imatrix, write_old_imatrix
from tests.fuzz import api_parsers
from tests.fuzz.mutation import mutated

_LAST_CHANGED = "2026-01-02T03:04:05.000Z"
LINES = (
    b"235 tokens in 80s = 2.93 tokens/s (4 threads)\n1,344 tok, 1 min 36 s\n393 tokens 2:07 2x8 1.7 GB RAM\n"
    b"341 ms per token\neval time = 8000 ms / 64 runs (125 ms per token, 8.0 tokens per second)\n"
)
CSV = b'text,group,n\n"one, two",a,1\n"say ""hi""\nthere",b,2\n'
TEMPLATES = [
    b"{% for m in messages %}{{ m['role'] }}: {{ m['content'] | trim }}\n{% endfor %}{{ bos_token }}",
    b"{%- if messages[0].role == 'system' -%}{{ messages[0].content }}{%- endif -%}{{ messages | tojson(indent=2) }}"
    b"{% macro a(x) %}{{ x ~ 1 }}{% endmacro %}{{ a('b') }}{% set ns = namespace(n=0) %}{{ '%5d' % 3 }}",
]
GRAMMARS = [
    b'root ::= item ("," item)* # list\nitem ::= [a-z0-9_]+ | "\\"" [^"\\x00-\\x1f]{1,8} "\\"" | ("x" | "y")?\n',
    b'root ::= "a"{2,5} ws\nws ::= [ \\t\\n]*\n',
]
SCHEMAS = [
    b'{"type":"object","properties":{"a":{"type":"string","pattern":"^[a-z]+$"},"b":{"type":"array","items":{"enum":[1,"x"]},'
    b'"minItems":1,"maxItems":3},"c":{"anyOf":[{"type":"integer","minimum":0,"maximum":9},{"type":"null"}]}},"required":["a"]}',
    b'{"$defs":{"n":{"type":"object","properties":{"a":{"type":"boolean"}}}},"type":"array","items":{"$ref":"#/$defs/n"}}',
]
_TABLE = (
    b'{"embed.weight": {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]}, "__metadata__": {"format": "pt"}}'
)
SAFETENSORS = struct.pack("<Q", len(_TABLE)) + _TABLE + bytes(32)
FOLDER_CONFIG = (
    b'{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4, "hidden_size": 2, "head_dim": 1,'
    b'"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 3, "max_position_embeddings": 64}'
)
MESSAGES = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


class Parser(NamedTuple):
    """A parser: what it does with an input, and valid ones."""

    parse: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]


def input_of(name: str, seed: int, number: int) -> bytes:
    """The input of this number, which is always the same."""
    return mutated(_seeds(name), random.Random(f"{seed}/{name}/{number}"))


@cache
def _seeds(name: str) -> list[bytes]:
    return PARSERS[name].seeds()


# what reads


@contextmanager
def _file(name: str, content: bytes) -> Iterator[Path]:
    """A file with this content, alone in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        yield path


def _import(content: bytes) -> None:
    """Read a file as the program of imports does, staging included."""
    with _file("given", content) as path:
        arrival = read_arrival("given", path)
        with telling("given"), StagingWriter(path.parent) as writer:
            if is_archive(path):
                for _ in stage_archive(path, writer):
                    pass
            for run in arrival.runs:
                writer.add_run(run)
            for trial in arrival.trials:
                writer.add_trial(trial)


def _trial_json() -> list[bytes]:
    """One trial, and two of a family."""
    root = with_stages(make_trial(3, 2))
    return [to_json(root), family_to_json([root, make_trial(2, 1, parent=root.id)])]


def _model(content: bytes) -> None:
    with _file("model.gguf", content) as path:
        read_model(path)


def _tensors(content: bytes) -> None:
    with _file("model.safetensors", content) as path:
        read_tensors(path)


def _folder(content: bytes) -> None:
    """Read a model folder with this configuration, beside valid weights."""
    with _file("config.json", content) as path:
        path.with_name("model.safetensors").write_bytes(SAFETENSORS)
        path.with_name("tokenizer.json").write_text("{}")
        read_model(path.parent)


def _imatrix(content: bytes) -> None:
    with _file("imatrix", content) as path:
        read_imatrix(path, _embedded())


def _imatrices() -> list[bytes]:
    """One in each of llama.cpp's two formats."""
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "new"), Path(folder, "old")
        write_imatrix(paths[0], _embedded())
        write_old_imatrix(paths[1], _embedded())
        return [path.read_bytes() for path in paths]


@cache
def _embedded() -> ModelFile:
    """The model that ships."""
    return read_model(embedded_model())


def _hub(content: bytes) -> None:
    """The hub's answer of what a repository holds, and the models in it."""
    answer = httpx2.MockTransport(lambda _: httpx2.Response(200, content=content))
    close_session()
    set_client_factory(lambda: httpx2.Client(transport=answer))
    try:
        choices(read_repository("someone/models"))
    finally:
        close_session()
        set_client_factory(default_client_factory)


def _hub_answers() -> list[bytes]:
    commit, blob, sha256 = "0" * 40, "1" * 40, "2" * 64
    files = ("a.Q8_0.gguf", "a.Q4_K_M-00001-of-00002.gguf", "a.Q4_K_M-00002-of-00002.gguf", "README.md")
    siblings = [{"rfilename": name, "size": 2000, "blobId": blob} for name in files]
    large = [{**each, "lfs": {"sha256": sha256, "size": 2000, "pointerSize": 134}} for each in siblings[:3]]
    embedder = [
        {"rfilename": name, "size": 100, "blobId": blob}
        for name in ("modules.json", "config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json")
    ]
    card = {"license": "mit", "tags": ["gguf"]}
    about = {"id": "someone/models", "sha": commit, "gated": False, "cardData": card, "lastModified": _LAST_CHANGED}
    return [json.dumps({**about, "siblings": found}).encode() for found in (large + siblings[3:], embedder)]


def _embedder(content: bytes) -> None:
    """The files of a folder of sentence-transformers, as one object of JSON."""
    try:
        files = json.loads(content)
    except (ValueError, RecursionError):
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, value in files.items() if isinstance(files, dict) else ():
            path = Path(folder, "".join(each for each in name if each.isalnum() or each in "._-")[:60] or "x")
            if not path.is_dir():
                path.write_bytes(json.dumps(value).encode())
        find_model(folder)


def _texts(ending: str) -> Callable[[bytes], object]:
    return lambda content: read_texts(f"given{ending}", content, most=1_000)


def _axes(content: bytes) -> None:
    """The values of an axis, of every axis; raises where none takes them."""
    text = content.decode("utf-8", "replace")
    failures = []
    for name, axis in AXES_BY_NAME.items():
        try:
            parse_values(name, text, "embedding" if axis.where in ("embedding", "texts") else "speed")
        except ConfigError as error:
            failures.append(error)
    if len(failures) == len(AXES_BY_NAME):
        raise max(failures, key=lambda failure: len(str(failure)))


def _query(content: bytes) -> None:
    Filter.from_query(dict(parse_qsl(content.decode("utf-8", "replace"), keep_blank_values=True)))


@cache
def _sandbox() -> Sandbox:
    return Sandbox()


_VOCABULARY = Vocabulary((b"<s>", b"</s>", b"a"), bytes((1, 2, 0)), {0: "<s>", 1: "</s>"}, 0, True, False)


def _template(content: bytes) -> None:
    _sandbox().render_chat(content.decode("utf-8", "replace"), MESSAGES, _VOCABULARY)


def _grammar(content: bytes) -> None:
    _sandbox().compile(Sampling(grammar=content.decode("utf-8", "replace")))


def _schema(content: bytes) -> None:
    _sandbox().compile(Sampling(json_schema=content.decode("utf-8", "replace")))


# what is valid


def _rows() -> list[bytes]:
    rows = [row(), row(n_prompt=512, n_gen=0)]
    return [json.dumps(rows).encode(), "\n".join(map(json.dumps, rows)).encode()]


def _written_rows() -> list[bytes]:
    rows = read_rows(_rows()[0].decode())
    return [write_rows(rows, form).encode() for form in FORMATS if form in ("csv", "sql")]


def _archive() -> list[bytes]:
    file = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, History.open(Path(folder, "history.duckdb")) as history:
        history.runs.keep(make_run())
        history.record(with_stages(make_trial(4))).result()
        export_history(history, file)
    return [file.getvalue()]


def _parquet(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def _samples() -> list[bytes]:
    run = make_run()
    labels = pa.array([f"layout {cell}" for cell in run.samples["cell"]])
    return [_parquet(sample_table(run.samples).append_column("label", labels)), _parquet(pa.Table.from_pylist([row()]))]


def _folders() -> list[bytes]:
    files = {
        "modules.json": [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}],
        "config.json": {"model_type": "bert", "hidden_size": 384, "max_position_embeddings": 512},
        "config_sentence_transformers.json": {"prompts": {"query": "q: ", "document": "d: "}},
        "sentence_bert_config.json": {"max_seq_length": 256},
        "tokenizer.json": {"model": {"vocab": {"a": 0}}},
    }
    return [json.dumps(files).encode()]


def _plans() -> list[bytes]:
    plan = Plan(name="Mine", model="m.gguf", axes={"layout": ("1x2",), "parallel": (1, 4)}, workload={"depth": 3})
    return [plan_to_json(plan).encode(), b'{"axes": {"parallel": "1-8*2", "n_ctx": 512}, "rounds": 6}']


PARSERS: dict[str, Parser] = {
    "gguf": Parser(_model, lambda: [gguf()]),
    "safetensors": Parser(_tensors, lambda: [SAFETENSORS]),
    "model-folder": Parser(_folder, lambda: [FOLDER_CONFIG]),
    "llama-bench-json": Parser(_import, _rows),
    "llama-bench-text": Parser(_import, _written_rows),
    "timing-log": Parser(_import, lambda: [(block(1) + block(2)).encode()]),
    "candidates": Parser(_import, lambda: [CANDIDATES.encode()]),
    "lines": Parser(_import, lambda: [LINES]),
    "trial": Parser(_import, lambda: [trial_bytes(make_trial(6)), trial_bytes(with_stages(make_trial(6)))]),
    "trial-json": Parser(_import, _trial_json),
    "run": Parser(_import, lambda: [run_bytes(make_run())]),
    "archive": Parser(_import, _archive),
    "parquet": Parser(_import, _samples),
    "csv": Parser(_texts(".csv"), lambda: [CSV]),
    "jsonl": Parser(_texts(".jsonl"), lambda: [b'{"text": "one", "group": "a"}\n{"text": "two"}\n', b'"one"\n"two"\n']),
    "txt": Parser(_texts(".txt"), lambda: [b"one\ntwo", "one".encode("utf-16")]),
    "documents": Parser(lambda content: count_texts([("given.txt", content)], len), lambda: [b"some words\n"]),
    "prices": Parser(
        lambda content: read_prices(content.decode("utf-8", "replace")),
        lambda: [path.read_bytes() for path in shipped("prices", "").glob("*.csv")],
    ),
    "plan": Parser(lambda content: plan_from_json(content.decode("utf-8", "replace")), _plans),
    "imatrix": Parser(_imatrix, _imatrices),
    "hub": Parser(_hub, _hub_answers),
    "embedder": Parser(_embedder, _folders),
    "axes": Parser(_axes, lambda: [b"1x2, 2xauto", b"1-8*2", b"0.5-2+0.5", b"on, off", b"q8_0"]),
    "query": Parser(
        _query,
        lambda: [
            b"text=a&since=2026-01-01&models=a%2Cb&ranges=parallel:1..4&is_starred=1",
            b"tags=a&until=2026-02-01",
        ],
    ),
    "hub-address": Parser(
        lambda content: parse_address(content.decode("utf-8", "replace")),
        lambda: [b"https://huggingface.co/a/b/blob/main/c.gguf?x=1", b"a/b@main", b"hf://a/b"],
    ),
    "template": Parser(_template, lambda: TEMPLATES),
    "grammar": Parser(_grammar, lambda: GRAMMARS),
    "schema": Parser(_schema, lambda: SCHEMAS),
    "completion-request": Parser(api_parsers.parse_completion, api_parsers.completions),
    "chat-request": Parser(api_parsers.parse_chat, api_parsers.chats),
    "embedding-request": Parser(api_parsers.parse_embedding, api_parsers.embeddings),
    "batch": Parser(api_parsers.parse_batch, api_parsers.batches),
    "form": Parser(api_parsers.parse_form, api_parsers.forms),
    "tool-calls": Parser(api_parsers.parse_answer, api_parsers.answers),
    "prompts": Parser(api_parsers.parse_prompts, api_parsers.prompt_files),
}  # fmt: skip

"""Corpora as Parquet: their parts, each of which becomes one file of vectors, and the folder of those files.

A part is a row group of a file. Its vectors are written whole or not at all, so a file that is there is done.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from engine.embedding.backends import kind_named
from engine.errors import ConfigError, ServerFailed
from engine.files import decoded_json, open_locked, open_regular, read_regular, unfinished, write_all, writing_whole
from engine.machine.fingerprint import about_llama, difference, versions
from engine.process.channel import Message
from engine.step_parts import Floats
from engine.units import counted

SETTINGS = "corpus.json"
TEXTS_AT_ONCE = 1024
"""Texts that are read, embedded and written at once; with their vectors, what a node holds in memory."""

MOST_FILES, MOST_PARTS = 100_000, 1_000_000
MOST_STEM_BYTES = 150
"""Bytes of a file's name that the names of its parts begin with; a file system takes 255 for a whole name."""
_UNREADABLE = (pa.ArrowException, OSError, ValueError)


class CorpusPart(msgspec.Struct, frozen=True):
    """Part of a corpus: a row group of a file, and the name of the file of its vectors."""

    file: str
    row_group: int
    num_rows: int
    name: str


class CorpusSettings(msgspec.Struct, frozen=True):
    """What determines the vectors of a corpus. model_sha256: hash of the model's content; files: by path,
    size in bytes and time of the last change in nanoseconds; versions: of what computes them, see `versions_of`, empty
    in a file of a release that did not write them."""

    model: str
    model_sha256: str
    backend: str
    is_query: bool
    column: str
    files: dict[str, tuple[int, int]]
    versions: dict[str, str] = {}


class EmbedParts(Message, frozen=True):
    """Embed these parts on the cluster at `address`, and write their files into `out`; the answer is the number of
    texts. is_mixed: nodes may have other versions."""

    address: str
    out: str
    settings: CorpusSettings
    parts: list[CorpusPart]
    is_mixed: bool


def versions_of(backend: str) -> dict[str, str]:
    """Return the versions here of what computes the vectors of a backend: packages by name, and llama.cpp's commit."""
    kind = kind_named(backend)
    names = ("logitbench", "numpy", "transformers", *kind.packages)
    found = {name: version for name, version in versions(names).items() if name in names}
    return found | ({"llama.cpp": about_llama().get("commit", "")} if kind.is_gguf else {})


def corpus_files(path: Path) -> list[Path]:
    """Return the Parquet files at a path, that of one or of a folder. Raises ConfigError where there is none."""
    path = path.resolve()
    found = sorted(path.glob("**/*.parquet")) if path.is_dir() else [path]
    if not found or len(found) > MOST_FILES:
        raise ConfigError(f"{path}: has {len(found):,} Parquet files (*.parquet); 1 to {MOST_FILES:,} are needed")
    return found


def parts_of(files: list[Path], column: str) -> list[CorpusPart]:
    """Return the parts of these files. Raises ConfigError for what is no Parquet table with this column of texts."""
    parts = []
    for number, path in enumerate(files):
        try:
            with open_regular(path) as opened:
                table = pq.ParquetFile(opened)
                schema, groups = table.schema_arrow, table.metadata
                num_rows = [groups.row_group(group).num_rows for group in range(groups.num_row_groups)]
        except _UNREADABLE as error:
            raise ConfigError(f"{path}: cannot be read as Parquet ({error})") from error
        if column not in schema.names or not _is_text(schema.field(column).type):
            texts = [field.name for field in schema if _is_text(field.type)]
            raise ConfigError(f"{path}: has no column {column!r} with texts; it has {', '.join(texts) or 'none'}")
        stem = path.stem.encode()[:MOST_STEM_BYTES].decode(errors="ignore")
        names = (f"{stem}-{number:06}-{group:06}.parquet" for group in range(len(num_rows)))
        parts += [CorpusPart(str(path), group, num_rows[group], name) for group, name in enumerate(names)]
        if len(parts) > MOST_PARTS:
            raise ConfigError(f"the corpus has more than {MOST_PARTS:,} row groups: write it with larger ones")
    return parts


def begin(out: Path, settings: CorpusSettings, *, is_mixed: bool = False) -> BinaryIO:
    """Create the folder of the vectors, or continue it; return its lock, held until it is closed.

    Raises ConfigError where another command holds it, where it is of another corpus or model, or unless `is_mixed` of
    other versions.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / SETTINGS).exists() and any(out.glob("*.parquet")):
            raise ConfigError(f"--out {out}: has Parquet files of something else: give an empty folder")
        file = open_locked(out / SETTINGS)
    except BlockingIOError as error:
        raise ConfigError(
            f"--out {out}: another command embeds into this folder: wait for it, or give another folder"
        ) from error
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written ({error})") from error
    try:
        _write_new(file, out, settings)
        check(out, settings, is_mixed=is_mixed)
    except BaseException:
        file.close()
        raise
    return file


def _write_new(file: BinaryIO, out: Path, settings: CorpusSettings) -> None:
    """Write the file of the settings where it is new. Raises ConfigError."""
    try:
        if not os.fstat(file.fileno()).st_size:
            write_all(file, json.dumps(msgspec.to_builtins(settings), indent=1).encode())
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written ({error})") from error


def check(out: Path, settings: CorpusSettings, *, is_mixed: bool = False) -> None:
    """Raise ConfigError unless a folder is one that `begin` made with the same settings, or but for its versions."""
    try:
        before = decoded_json(read_regular(out / SETTINGS), CorpusSettings)
    except OSError as error:
        raise ConfigError(
            f"{out / SETTINGS}: cannot be read ({error.strerror}): every node must see this folder and be allowed to "
            "read it"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{out / SETTINGS}: is damaged ({error}): give an empty folder") from error
    for name in CorpusSettings.__struct_fields__:
        if name != "versions" and getattr(before, name) != getattr(settings, name):
            raise ConfigError(
                f"{out}: was begun with another {name}: give an empty folder, or the same corpus and model"
            )
    if not is_mixed and (differing := difference(before.versions, settings.versions)):
        raise ConfigError(f"{out}: was begun with another {differing}: install the same, or allow both with --mixed")


def missing(out: Path, parts: list[CorpusPart]) -> list[CorpusPart]:
    """Return the parts whose vectors are not there."""
    done = {path.name for path in out.glob("*.parquet")}
    return [part for part in parts if part.name not in done]


def end(out: Path, parts: list[CorpusPart]) -> None:
    """Remove what nodes that were lost left unfinished. Raises ServerFailed where the vectors of a part are missing."""
    if left := missing(out, parts):
        lacking = counted(len(left), "row group")
        raise ServerFailed(f"{out}: lacks the vectors of {lacking}, such as {left[0].name}. Start it again to go on")
    for path in unfinished(out):
        with suppress(OSError):
            path.unlink()


def write_part(
    part: CorpusPart, column: str, out: Path, embed: Callable[[list[str]], Floats], about: Mapping[str, str]
) -> int:
    """Embed a part and write its file: row number in the row group, text, vector (null for no text).

    about: versions that computed it, which its metadata keeps as the JSON text "versions". Returns the number of texts.
    Raises ConfigError where a file cannot be read or written, and what `embed` raises.
    """
    num_texts, kept = 0, {"versions": json.dumps(dict(about))}
    try:
        with open_regular(Path(part.file)) as opened, writing_whole(out / part.name) as file:
            writer: pq.ParquetWriter | None = None
            for start, texts in _texts(opened, part, column):
                given = [text for text in texts if text is not None]
                vectors = embed(given) if given else None
                table = _table(start, texts, vectors, column).replace_schema_metadata(kept)
                if writer is None:
                    writer = pq.ParquetWriter(file, table.schema, compression="zstd")
                writer.write_table(table)
                num_texts += len(given)
            if writer is None:
                writer = pq.ParquetWriter(file, _table(0, [], None, column).schema.with_metadata(kept))
            writer.close()
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{part.file}, row group {part.row_group}: cannot be embedded ({error})") from error
    return num_texts


def _texts(opened: Any, part: CorpusPart, column: str) -> Iterator[tuple[int, list[str | None]]]:
    start = 0
    table = pq.ParquetFile(opened, pre_buffer=False)
    for batch in table.iter_batches(TEXTS_AT_ONCE, row_groups=[part.row_group], columns=[column], use_threads=False):
        yield start, batch.column(0).to_pylist()
        start += batch.num_rows


def _table(start: int, texts: list[str | None], vectors: Floats | None, column: str) -> pa.Table:
    flat = pa.array([] if vectors is None else vectors.ravel(), pa.float32())
    dim, ends, end = 0 if vectors is None else vectors.shape[1], [0], 0
    for text in texts:
        end += dim if text is not None else 0
        ends.append(end)
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat, mask=pa.array([text is None for text in texts]))
    rows = pa.array(range(start, start + len(texts)), pa.int64())
    return pa.table({"row": rows, column: pa.array(texts, pa.large_string()), "vector": lists})


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))

"""`python -m engine embed`: embeds the texts of a file, or lists the speed of each backend on this machine.

The vectors are printed as JSON, written as a numpy array, or summarised by nearest neighbours.
"""

import argparse
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.bench.planning.engines import is_remote, known_engine
from engine.bench.planning.remote import TEXTS, describe_requests
from engine.commands.arguments import check_writable, from_standard_input
from engine.commands.embed_backends import show_backends
from engine.commands.embed_corpus import embed_corpus
from engine.commands.parser import PROGRAM, Parser
from engine.commands.printing import print_json, print_text
from engine.embedding.choice import LOSSLESS
from engine.embedding.embedder import Embedder
from engine.embedding.job import EmbedResult
from engine.embedding.models import EMBEDDED_NAME
from engine.embedding.specs import AUTO, BACKENDS, EmbedSpec
from engine.errors import ConfigError
from engine.exchange.text_files import MOST_BYTES, TextSet, read_texts
from engine.files import write_whole
from engine.opening import open_embedder
from engine.private_files import persons_umask
from engine.progress_line import ProgressLine
from engine.protocol import EXTERNAL
from engine.units import counted, digits, duration, percent
from engine.workbench.similarity import nearest

DECIMALS = 8
MOST_SHOWN, WIDTH = 20, 56


def run(words: Sequence[str]) -> None:
    """Run the command. Raises EngineError, SystemExit for unknown flags."""
    parser = _parser()
    given = parser.parse_args(words[1:])
    if given.backends:
        show_backends(given.model, is_new=given.measure, is_json=given.json)
        return
    if given.file is None:
        parser.error("FILE is missing: give a file with texts, or --backends")
    if given.cluster:
        embed_corpus(given)
        return
    if given.out is not None:
        if given.out.suffix != ".npy":
            raise ConfigError(f"--out {given.out}: must end in .npy")
        check_writable(given.out)
    found = read_texts(*_file(given.file), column=given.column)
    spec = EmbedSpec(model=given.model, backend=given.backend, workers=given.workers)
    if spec.engine and not given.send_to_others:
        _check_here(spec, len(found.texts))
    line = ProgressLine()
    with open_embedder(spec) as pool:
        job = pool.submit(
            found.texts,
            is_query=given.query,
            on_progress=lambda share: line.show(f"embedding: {percent(share)}", step=int(10 * share)),
        )
        result = job.result()
        line.end()
    if given.json:
        print_json(_plain(found, result, pool), indent=None)
    else:
        print_text(_summary(found, result, pool))
    if given.out is not None:
        _write(given.out, result)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=f"{PROGRAM} embed", description="Embed the texts of a file as unit vectors.", allow_abbrev=False
    )
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help=".csv, .tsv, .jsonl, or plain lines; -: lines of standard input"
    )
    parser.add_argument("--column", metavar="NAME", help="column with the texts (default: chosen by name)")
    parser.add_argument(
        "--model", default="", metavar="M", help=f"folder, GGUF file or name (default: {EMBEDDED_NAME})"
    )
    parser.add_argument(
        "--backend", default=AUTO, metavar="B", help=f"one of {', '.join(BACKENDS)} (default: the fastest measured "
        f"here, bfloat16 included, whose vectors all have a cosine of at least {LOSSLESS} to those of float32), or "
        f"{EXTERNAL}NAME: an engine of `engines list`, by its /v1/embeddings; --model is then one of its models",
    )  # fmt: skip
    parser.add_argument(
        "--backends", action="store_true", help="show each backend's speed here; measured the first time"
    )
    parser.add_argument("--measure", action="store_true", help="with --backends: measure again")
    parser.add_argument(
        "--workers",
        default=1,
        type=int,
        metavar="N",
        help="processes that share the model; of an external engine requests at once",
    )
    parser.add_argument(
        "--send-to-others", action="store_true", help="allow the texts to go to an external engine on another machine"
    )
    parser.add_argument(
        "--cluster",
        default="",
        metavar="ADDRESS",
        help="embed a corpus, FILE.parquet or a folder of them with a --column of texts, on the nodes of this Ray "
        "cluster, into the folder --out; every node must see both; started again, it goes on",
    )
    parser.add_argument(
        "--mixed", action="store_true", help="with --cluster: allow nodes with other versions of what computes vectors"
    )
    parser.add_argument("--query", action="store_true", help="the texts are queries, which some models prefix")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE.npy",
        help="write the vectors to this file, float32; with --cluster to Parquet in this folder",
    )
    parser.add_argument(
        "--json", action="store_true", help=f"print JSON; vectors have {DECIMALS} decimals, --out has the exact ones"
    )
    return parser


def _check_here(spec: EmbedSpec, num_texts: int) -> None:
    """Raise ConfigError where the external engine of a spec is on another machine."""
    if is_remote(spec.backend):
        request = describe_requests({known_engine(spec.backend).url: num_texts}, TEXTS)
        raise ConfigError(f"{request} Nothing is sent there before you allow it: give --send-to-others")


def _file(given: str) -> tuple[str, bytes]:
    if given == "-":
        return "standard input", from_standard_input(lambda file: file.buffer.read(MOST_BYTES + 1))
    try:
        with open(given, "rb") as file:
            return Path(given).name, file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{given}: cannot be read ({error})") from None


def _write(path: Path, result: EmbedResult) -> None:
    try:
        array = io.BytesIO()
        np.save(array, result.vectors)
        with persons_umask():
            write_whole(path, array.getvalue())
    except OSError as error:
        raise ConfigError(f"--out {path}: cannot be written ({error})") from None


def _plain(found: TextSet, result: EmbedResult, pool: Embedder) -> dict[str, Any]:
    vectors = np.round(result.vectors.astype(np.float64), DECIMALS).tolist()
    return {
        "model": pool.name,
        "backend": pool.backend,
        "dim": pool.dim,
        "max_tokens": pool.max_tokens,
        "num_tokens": result.num_tokens,
        "num_cut": result.num_cut,
        "load_s": pool.load_s,
        "elapsed_s": result.elapsed_s,
        "texts": [{"text": text, "vector": vector} for text, vector in zip(found.texts, vectors, strict=True)],
    }


def _summary(found: TextSet, result: EmbedResult, pool: Embedder) -> str:
    num = len(found.texts)
    rate = f"{digits(num / result.elapsed_s)} per second" if result.elapsed_s > 0 else duration(result.elapsed_s)
    cut = (
        f"; {counted(result.num_cut, 'text')} longer than {pool.max_tokens:,} tokens truncated"
        if result.num_cut and pool.max_tokens is not None
        else ""
    )
    lines = [f"{counted(num, 'text')}, {pool.dim:,} dimensions, by {pool.name} ({pool.backend}), {rate}{cut}"]
    for number, text in enumerate(found.texts[:MOST_SHOWN]):
        lines.append(f"{number + 1:>5}  {_short(text)}")
        for other, cosine in nearest(result.vectors, result.vectors[number], 1, without=number):
            lines.append(f"{cosine:>13.3f}  {_short(found.texts[other])}")
    if num > MOST_SHOWN:
        lines.append(f"and {num - MOST_SHOWN:,} more; --json and --out have all")
    return "\n".join(lines)


def _short(text: str) -> str:
    words = " ".join(text[: 4 * WIDTH].split())
    return words if len(words) <= WIDTH else words[: WIDTH - 1] + "…"

"""Corpora: their parts, files that are whole or absent, and folders that are continued only with the same settings."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.commands import embed_corpus
from engine.errors import ConfigError, ServerFailed, WorkerDied
from engine.over_nodes import corpus
from engine.over_nodes.corpus import (
    SETTINGS,
    CorpusPart,
    CorpusSettings,
    EmbedParts,
    begin,
    corpus_files,
    end,
    missing,
    parts_of,
    write_part,
)
from engine.step_parts import Floats

TEXTS = ["a", "bb", None, "cccc", "", "ddd"]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files with three row groups of two rows each."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("one", "two"):
        table = pa.table({"id": list(range(6)), "text": TEXTS})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=2)
    return corpus_files(folder)


def settings(**changes: object) -> CorpusSettings:
    return msgspec.structs.replace(
        CorpusSettings("m", "00", "torch", False, "text", {"one": (1, 5)}, {"torch": "2"}), **changes
    )


def lengths(texts: list[str]) -> Floats:
    return np.array([[len(text), 1.0] for text in texts], np.float32)


def test_every_row_group_becomes_a_file_of_its_vectors(files: list[Path], tmp_path: Path) -> None:
    parts = parts_of(files, "text")
    assert [(part.row_group, part.num_rows) for part in parts] == [(0, 2), (1, 2), (2, 2)] * 2
    assert [write_part(part, "text", tmp_path, lengths, {}) for part in parts] == [2, 1, 2] * 2
    rows = [row for part in parts for row in pq.read_table(tmp_path / part.name).to_pylist()]
    assert [row["text"] for row in rows] == TEXTS * 2
    assert [row["vector"] for row in rows[:4]] == [[1, 1], [2, 1], None, [4, 1]]
    assert [row["row"] for row in rows[:4]] == [0, 1, 0, 1]
    assert missing(tmp_path, parts) == []


def test_rows_are_read_and_embedded_in_bounded_batches(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "TEXTS_AT_ONCE", 1)
    asked: list[int] = []

    def embed(texts: list[str]) -> Floats:
        asked.append(len(texts))
        return lengths(texts)

    for part in parts_of(files[:1], "text"):
        write_part(part, "text", tmp_path, embed, {})
    assert asked == [1] * 5


def test_a_part_that_fails_leaves_no_file_and_is_missing(files: list[Path], tmp_path: Path) -> None:
    def die(_texts: list[str]) -> Floats:
        raise WorkerDied("it ended")

    parts = parts_of(files, "text")
    write_part(parts[0], "text", tmp_path, lengths, {})
    with pytest.raises(WorkerDied):
        write_part(parts[1], "text", tmp_path, die, {})
    assert missing(tmp_path, parts) == parts[1:]


def test_a_folder_is_continued_only_with_the_same_corpus_and_model(tmp_path: Path) -> None:
    begin(tmp_path / "out", settings()).close()
    begin(tmp_path / "out", settings()).close()
    others: list[dict[str, object]] = [
        {"model_sha256": "11"}, {"column": "title"}, {"backend": "onnx"}, {"files": {"one": (2, 5)}},
        {"files": {"one": (1, 6)}},
    ]  # fmt: skip
    for changes in others:
        with pytest.raises(ConfigError, match=next(iter(changes))):
            begin(tmp_path / "out", settings(**changes))


def test_a_folder_is_continued_with_other_versions_only_where_asked_for(tmp_path: Path) -> None:
    begin(tmp_path / "out", settings()).close()
    for versions in ({"torch": "1"}, {}, {"torch": "2", "more": "1"}):
        with pytest.raises(ConfigError, match=r"was begun with another (torch|more) \(.* instead of .*--mixed"):
            begin(tmp_path / "out", settings(versions=versions))
        begin(tmp_path / "out", settings(versions=versions), is_mixed=True).close()


def test_one_command_at_a_time_has_a_folder(tmp_path: Path) -> None:
    with (
        begin(tmp_path / "out", settings()),
        pytest.raises(ConfigError, match="another command embeds into this folder"),
    ):
        begin(tmp_path / "out", settings())
    begin(tmp_path / "out", settings()).close()


def test_settings_of_an_older_release_or_damaged_ones_are_called_such(tmp_path: Path) -> None:
    begin(tmp_path, settings()).close()
    older = json.loads((tmp_path / SETTINGS).read_text())
    del older["versions"]
    (tmp_path / SETTINGS).write_text(json.dumps(older))
    with pytest.raises(ConfigError, match=r"was begun with another torch \(none instead of 2\).*--mixed"):
        begin(tmp_path, settings())
    begin(tmp_path, settings(), is_mixed=True).close()
    (tmp_path / SETTINGS).write_text("{")
    with pytest.raises(ConfigError, match=r"corpus.json: is damaged \(.*\): give an empty folder"):
        begin(tmp_path, settings())


def test_the_end_of_a_corpus_is_no_end_while_parts_are_missing(files: list[Path], tmp_path: Path) -> None:
    parts = parts_of(files, "text")
    left = tmp_path / f"{parts[0].name}.0a1b2c3d.unfinished"
    left.write_bytes(b"of a node that was killed")
    for part in parts[1:]:
        write_part(part, "text", tmp_path, lengths, {"torch": "2"})
    with pytest.raises(
        ServerFailed, match=r"lacks the vectors of 1 row group, such as one-000000-000000.parquet. Start it"
    ):
        end(tmp_path, parts)
    assert left.exists()
    write_part(parts[0], "text", tmp_path, lengths, {"torch": "2"})
    end(tmp_path, parts)
    assert not left.exists() and missing(tmp_path, parts) == []
    assert pq.read_schema(tmp_path / parts[0].name).metadata[b"versions"] == b'{"torch": "2"}'


def test_progress_lists_the_folder_only_as_often_as_that_costs_little(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, now, listed = parts_of(files, "text"), 0.0, list[float]()

    def slow(_out: Path, _parts: list[CorpusPart]) -> list[CorpusPart]:
        nonlocal now
        listed.append(now)
        now += 2.0
        return parts[len(listed) :]

    monkeypatch.setattr(embed_corpus, "missing", slow)
    order = EmbedParts("127.0.0.1:6379", str(tmp_path), settings(), parts, False)
    task = embed_corpus._Embedding(order, parts, clock=lambda: now)
    for _ in range(200):
        progress = task._progress()
        assert progress.share == pytest.approx(len(listed) / len(parts))
        now += 0.5
    assert len(listed) == 3
    assert np.diff(listed).min() >= 2.0 * embed_corpus.LISTED_EVERY


def test_a_folder_of_something_else_is_refused(files: list[Path]) -> None:
    with pytest.raises(ConfigError, match="something else"):
        begin(files[0].parent, settings())


def test_a_long_name_in_any_script_fits_a_file_system(files: list[Path], tmp_path: Path) -> None:
    path = files[0].rename(files[0].with_name("\u8a71" * 80 + ".parquet"))
    parts = parts_of([path], "text")
    assert [write_part(part, "text", tmp_path, lengths, {}) for part in parts] == [2, 1, 2]
    assert parts[0].name == "\u8a71" * 50 + "-000000-000000.parquet"
    emoji = files[1].rename(files[1].with_name("a" + "\U0001f600" * 60 + ".parquet"))
    assert parts_of([emoji], "text")[0].name == "a" + "\U0001f600" * 37 + "-000000-000000.parquet"


def test_a_cluster_that_lends_no_core_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus_program = pytest.importorskip("engine.over_nodes.corpus_program")  # needs ray
    monkeypatch.setattr(corpus_program, "connect", lambda address: None)
    monkeypatch.setattr(corpus_program, "check_exposed", lambda address, is_authenticated: None)
    monkeypatch.setattr(corpus_program, "is_authenticated", lambda: True)
    monkeypatch.setattr(corpus_program, "get_node_ip_address", lambda: "127.0.0.1")
    nodes = [{"Alive": True, "Resources": {"CPU": 0.0}}, {"Alive": True, "Resources": {}}]
    monkeypatch.setattr(corpus_program.ray, "nodes", lambda: nodes)
    with pytest.raises(ConfigError, match="no node of the cluster lends a core"):
        corpus_program._answer(EmbedParts("127.0.0.1:6379", "out", settings(), [], False))


@pytest.mark.parametrize("left", [[], [1.0]], ids=["no node", "a smaller one"])
def test_a_corpus_waits_for_nodes_only_so_long(monkeypatch: pytest.MonkeyPatch, left: list[float]) -> None:
    corpus_program = pytest.importorskip("engine.over_nodes.corpus_program")  # needs ray
    monkeypatch.setattr(corpus_program, "connect", lambda address: None)
    monkeypatch.setattr(corpus_program, "check_exposed", lambda address, is_authenticated: None)
    monkeypatch.setattr(corpus_program, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(corpus_program, "_embed", lambda order, cores, embedded: None)
    monkeypatch.setattr(corpus_program, "NO_NODE_S", 0.2)
    monkeypatch.setattr(corpus_program, "_LOOK_S", 0.01)
    alive = iter([[2.0]] * 30)
    monkeypatch.setattr(
        corpus_program.ray,
        "nodes",
        lambda: [{"Alive": True, "Resources": {"CPU": cores}} for cores in next(alive, left)],
    )
    message = r"no node of the cluster with at least 2 cores was there for 0.2 s. Start it again to go on"
    with pytest.raises(ServerFailed, match=message):
        corpus_program._answer(EmbedParts("127.0.0.1:6379", "out", settings(), [], False))
    assert next(alive, None) is None


def test_a_corpus_that_is_none_is_refused(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no column 'title' with texts; it has text"):
        parts_of(files, "title")
    with pytest.raises(ConfigError, match="no column 'id'"):
        parts_of(files, "id")
    files[0].write_bytes(b"PAR1 no table")
    with pytest.raises(ConfigError, match="cannot be read as Parquet"):
        parts_of(files, "text")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="0 Parquet files"):
        corpus_files(tmp_path / "empty")

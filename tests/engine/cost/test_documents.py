import os
import sys
from pathlib import Path

import pytest

from engine.cost import count_folder, count_texts, documents
from engine.errors import ConfigError, EngineError, LimitExceeded, WorkerDied


def count(text: str) -> int:
    return len(text.split()) + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "corpus"
    (root / "deeper").mkdir(parents=True)
    (root / "b.txt").write_text("one two three\n")
    (root / "deeper" / "a.md").write_bytes("\ufeffvier fünf".encode())
    return root


def test_every_text_is_counted(folder: Path) -> None:
    found = count_folder(folder, count)
    assert found.documents == (("b.txt", 3, 4), (os.path.join("deeper", "a.md"), 2, 3))
    assert (found.num_words, found.num_tokens, found.skipped, found.is_complete) == (5, 7, (), True)


def test_what_is_no_document_is_listed_with_its_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST_BYTES", 1 << 20)
    (folder.parent / "secret.txt").write_text("a secret")
    (folder / "out.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "in.txt").symlink_to(folder / "b.txt")
    (folder / "loop.txt").symlink_to(folder / "loop.txt")
    (folder / "upwards").symlink_to(folder.parent)
    (folder / "binary.bin").write_bytes(b"GGUF\0\0\0")
    (folder / "latin.txt").write_bytes("fünf".encode("latin-1"))
    (folder / "empty.txt").write_bytes(b"  \n")
    (folder / "huge.txt").write_bytes(b"word " * 300_000)
    (folder / ".hidden").write_text("not looked at")
    os.mkfifo(folder / "pipe")
    found = count_folder(folder, count)
    assert [name for name, *_ in found.documents] == ["b.txt", "in.txt", os.path.join("deeper", "a.md")]
    assert {name: reason.partition(" (")[0] for name, reason in found.skipped} == {
        "binary.bin": "binary, not text",
        "empty.txt": "empty",
        "huge.txt": "larger than 1 MiB",
        "latin.txt": "not UTF-8 text",
        "loop.txt": "cannot be read",
        "out.txt": "a link to outside the folder",
        "pipe": "not a regular file",
    }


@pytest.mark.parametrize("error", [ConfigError("too long"), LimitExceeded("too slow"), WorkerDied("it crashed")])
def test_a_document_that_the_tokenizer_fails_at_is_listed_and_the_others_are_counted(
    folder: Path, error: EngineError
) -> None:
    def fails_at_one(text: str) -> int:
        if text.startswith("one"):
            raise error
        return count(text)

    found = count_folder(folder, fails_at_one)
    assert found.documents == ((os.path.join("deeper", "a.md"), 2, 3),)
    assert [name for name, _ in found.skipped] == ["b.txt"]
    assert str(error) in found.skipped[0].reason


def test_bounds_end_the_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST_DOCUMENTS", 1)
    found = count_folder(folder, count)
    assert [name for name, *_ in found.documents] == ["b.txt"]
    assert not found.is_complete


def test_folders_that_are_not_entered_are_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST_FOLDERS", 1)
    found = count_folder(folder, count)
    assert [name for name, *_ in found.documents] == ["b.txt"]
    assert found.skipped == (("deeper", "a folder that was not read: the limit is 1 folders"),)


def test_files_that_were_brought_are_counted_alike() -> None:
    found = count_texts([("a.txt", b"one two"), ("b.pdf", b"%PDF\0")], count)
    assert found.documents == (("a.txt", 2, 3),)
    assert found.skipped == (("b.pdf", "binary, not text"),)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, reason in (
        (tmp_path / "missing", "no such folder"),
        (tmp_path / "file", "is a file"),
        ("\0", "not a valid path"),
    ):
        with pytest.raises(ConfigError, match=reason):
            count_folder(path, count)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_files_that_the_system_generates_are_not_read() -> None:
    """Some of them, as /proc/kmsg, are read for ever."""
    found = count_folder("/proc/sys/vm", count)
    assert not found.documents
    assert {one.reason for one in found.skipped} <= {"empty", "cannot be read (Permission denied)"}

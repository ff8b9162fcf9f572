"""Models that are sent to a node: whole or not there, whatever breaks, and never outside the node's folder."""

import errno
import hashlib
import os
import random
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import files
from engine.cluster import file_sending, node_files
from engine.cluster.file_sending import send_model
from engine.cluster.model_files import FileOffer, Have, ModelOffer, model_offer
from engine.cluster.node_files import NodeFiles
from engine.errors import EngineError, ModelError, WorkerDied
from engine.models import read_model
from tests.engine.cluster.nodes import DiskNode, lost
from tests.waiting import Clock

KIB = 1 << 10
KINDS = {
    "one file": ("one.gguf", [300 * KIB]),
    "a split model": ("m-00001-of-00003.gguf", [100 * KIB, 64 * KIB, 7]),
    "a folder": ("story", [200 * KIB, 0, 900]),
}


def tell(_share: float, _doing: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture
def front(tmp_path: Path) -> Path:
    folder = tmp_path / "front"
    folder.mkdir()
    return folder


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DiskNode]:
    with_disk = DiskNode(tmp_path / "node")
    yield with_disk
    with_disk.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sending, "POLL_S", 0.01)


def write_model(front: Path, kind: str, seed: int = 0) -> ModelOffer:
    """Write a model of one kind and return its offer."""
    name, sizes = KINDS[kind]
    is_folder = kind == "a folder"
    names = [name, *(name.replace("00001-of", f"{number:05}-of") for number in range(2, len(sizes) + 1))]
    folder, names = (front / name, ["w.safetensors", "config.json", "t.json"]) if is_folder else (front, names)
    folder.mkdir(exist_ok=True)
    offered = []
    for one, size in zip(names, sizes, strict=True):
        content = random.Random(f"{seed}{one}").randbytes(size)
        (folder / one).write_bytes(content)
        offered.append(FileOffer(one, size, hashlib.sha256(content).hexdigest()))
    return ModelOffer(str(front / name), is_folder, tuple(offered))


def check_is_whole(path: str, offer: ModelOffer) -> None:
    """Fail unless all files of the offer are there, with their content."""
    there = ModelOffer(path, offer.is_folder, offer.files)
    for file, place in zip(offer.files, there.places(), strict=True):
        assert hashlib.sha256(place.read_bytes()).hexdigest() == file.sha256


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_there_comes_in_blocks_and_is_then_there(front: Path, node: DiskNode, kind: str) -> None:
    offer, shares = write_model(front, kind), list[float]()
    path = send_model(offer, node, lambda share, _doing: shares.append(share), 32 * KIB)
    check_is_whole(path, offer)
    assert Path(path).is_relative_to(node.home / "cluster" / "models" / offer.key)
    assert node.calls.count("block") == sum(-(-file.size // (32 * KIB)) for file in offer.files)
    assert shares == sorted(shares) and 0 <= shares[0] < 0.2 and shares[-1] > 0.8
    assert not node.hidden()
    node.calls.clear()
    assert send_model(offer, node, tell) == path
    assert set(node.calls) == {"offer"}


@pytest.mark.parametrize("kind", ["one file", "a split model"])
def test_the_same_path_with_the_same_bytes_counts_as_there(front: Path, node: DiskNode, kind: str) -> None:
    offer = write_model(front, kind)
    node.here(front).parent.mkdir(parents=True)
    shutil.copytree(front, node.here(front))
    assert send_model(offer, node, tell) == str(node.here(offer.path))
    assert "block" not in node.calls


def test_a_real_folder_counts_as_there_and_one_with_another_file_does_not(
    story_folder: Path, node: DiskNode, tmp_path: Path
) -> None:
    offer = model_offer(read_model(story_folder))
    shutil.copytree(story_folder, node.here(story_folder))
    assert send_model(offer, node, tell) == str(node.here(story_folder))
    (node.here(story_folder) / "chat_template.jinja").write_text("{{ messages }}")
    path = send_model(offer, node, tell)
    assert Path(path).is_relative_to(node.home)
    assert [one.name for one in read_model(path).files] == [one.name for one in read_model(story_folder).files]


@pytest.mark.parametrize("other", ["bytes", "size", "a folder", "a link to nowhere"])
def test_another_file_at_the_same_path_is_left_alone(front: Path, node: DiskNode, other: str) -> None:
    offer = write_model(front, "one file")
    there = node.here(offer.path)
    there.parent.mkdir(parents=True)
    match other:
        case "bytes":
            there.write_bytes(bytes(offer.size))
        case "size":
            there.write_bytes(b"other")
        case "a folder":
            there.mkdir()
        case _:
            there.symlink_to("nowhere")
    path = send_model(offer, node, tell)
    check_is_whole(path, offer)
    assert Path(path) != there and os.path.lexists(there)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_breaks_no_file_looks_whole_that_is_not_and_the_transfer_goes_on(
    front: Path, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    offer = write_model(front, chance.choice(list(KINDS)), seed)
    hashes = {file.name: file.sha256 for file in offer.files}
    breaks = {chance.randint(1, 25) for _ in range(4)}

    def fault(number: int) -> None:
        if number in breaks:
            if chance.random() < 0.5:
                breaking.restart()
            raise lost()

    breaking, path = DiskNode(tmp_path / "node", fault=fault), ""
    try:
        for _ in range(len(breaks) + 1):
            try:
                path = send_model(offer, breaking, tell, 16 * KIB)
                break
            except WorkerDied:
                for one in breaking.shown():
                    assert hashlib.sha256(one.read_bytes()).hexdigest() == hashes[one.name]
        check_is_whole(path, offer)
        assert not breaking.hidden()
    finally:
        breaking.close()


def test_what_arrived_before_a_break_is_not_sent_again(front: Path, tmp_path: Path) -> None:
    offer = write_model(front, "one file")

    def fault(number: int) -> None:
        if number == 8:
            raise lost()

    node = DiskNode(tmp_path / "node", fault=fault)
    with pytest.raises(WorkerDied):
        send_model(offer, node, tell, 16 * KIB)
    before = node.calls.count("block")
    node.restart()
    check_is_whole(send_model(offer, node, tell, 16 * KIB), offer)
    assert node.calls.count("block") < before + -(-offer.size // (16 * KIB)) - 3
    node.close()


def test_an_abort_keeps_what_has_arrived_and_frees_the_transfer(front: Path, node: DiskNode) -> None:
    offer = write_model(front, "one file")

    def stop(share: float, _doing: str) -> None:
        if share > 0.4:
            raise EngineError("stopped")

    with pytest.raises(EngineError, match="stopped"):
        send_model(offer, node, stop, 16 * KIB)
    assert not node.shown() and len(node.hidden()) == 1
    check_is_whole(send_model(offer, node, tell, 16 * KIB), offer)


def test_transfers_of_the_same_files_at_once_send_them_once(front: Path, node: DiskNode) -> None:
    offer = write_model(front, "a split model")
    paths: list[str] = []
    threads = [
        threading.Thread(target=lambda: paths.append(send_model(offer, node, tell, 8 * KIB)), daemon=True)
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(paths) == 4 and len(set(paths)) == 1
    check_is_whole(paths[0], offer)
    assert node.calls.count("block") == sum(-(-file.size // (8 * KIB)) for file in offer.files)


def test_two_agents_of_one_machine_share_a_transfer_too(front: Path, tmp_path: Path) -> None:
    offer = write_model(front, "one file")
    first, second = (NodeFiles(tmp_path / "home") for _ in range(2))
    given = {**offer.to_dict(), "path": "/elsewhere/one.gguf"}
    assert first.offer(given, "a").state == "wanted"
    assert second.offer(given, "b").state == "busy"
    first.abort(offer.key, "a")
    assert second.offer(given, "b").state == "wanted"
    second.close()


def test_a_silent_transfer_is_taken_over(front: Path, tmp_path: Path) -> None:
    offer, clock = write_model(front, "one file"), Clock()
    node = NodeFiles(tmp_path / "home", clock)
    given = {**offer.to_dict(), "path": "/elsewhere/one.gguf"}
    assert node.offer(given, "a").state == "wanted"
    clock.now += node_files.LEASE_S - 1
    assert node.offer(given, "b").state == "busy"
    clock.now += 2
    assert node.offer(given, "b").state == "wanted"
    assert node.block(offer.key, "a", 0, 0, b"x").state == "lost"
    node.close()


HOSTILE_NAMES = ["../x", "a/b", "/etc/x", "..", ".", "", ".hidden", "a\\b", "a\0b", "a\nb", "x" * 300, "é" * 150]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        FileOffer(name, 1, "ab" * 32)
    node = NodeFiles(tmp_path / "home")
    given = {"path": "/x", "is_folder": False, "files": [{"name": name, "size": 1, "sha256": "ab" * 32}]}
    have = node.offer(given, "a")
    assert have.state == "failed" and "refused" in have.error
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "change",
    [{"files": []}, {"extra": 1}, {"path": 5}, {"path": "x" * 5000}, {"files": [{"name": "x", "size": -1}]},
     {"files": [{"name": "x", "size": 1, "sha256": "AB" * 32}]}, {"files": [{"name": "x", "size": 1 << 60}]},
     {"files": [{"name": name, "size": 1, "sha256": "ab" * 32} for name in ("x", "X")]}],
)  # fmt: skip
def test_an_offer_of_another_form_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    given = {"path": "/x", "is_folder": False, "files": [{"name": "x", "size": 1, "sha256": "ab" * 32}]}
    have = NodeFiles(tmp_path).offer(given | change, "a")
    assert have.state == "failed"


@pytest.mark.parametrize("path", ["", "relative", "/a\0b", "/" + "x" * 1000, "/proc/self/mem", "/dev"])
def test_a_path_that_cannot_be_here_is_as_good_as_none(tmp_path: Path, path: str) -> None:
    given = {"path": path, "is_folder": False, "files": [{"name": "x", "size": 1, "sha256": "ab" * 32}]}
    node = NodeFiles(tmp_path)
    assert node.offer(given, "a").state == "wanted"
    node.close()


def test_bytes_that_are_not_the_offered_ones_are_thrown_away(front: Path, tmp_path: Path) -> None:
    offer = write_model(front, "one file")
    node, given = NodeFiles(tmp_path / "home"), {**offer.to_dict(), "path": "/elsewhere/one.gguf"}
    node.offer(given, "a")
    wrong = bytes(offer.size)
    assert node.block(offer.key, "a", 0, 0, wrong).offset == offer.size
    have = node.finish(offer.key, "a", 0)
    assert have.state == "failed" and "checksum" in have.error
    assert not [path for path in (tmp_path / "home" / "cluster").rglob("*") if path.is_file()]
    assert node.offer(given, "a") == Have("wanted", 0.0)
    assert node.block(offer.key, "a", 0, 0, wrong + b"x").state == "failed"
    node.close()


@pytest.mark.parametrize("step", ["before", "during"])
def test_a_full_disk_names_the_node_and_the_bytes(
    front: Path, node: DiskNode, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    offer = write_model(front, "one file")
    full = OSError(errno.ENOSPC, "no space")

    def refuse(*_given: object) -> None:
        raise full

    with monkeypatch.context() as patch:
        if step == "before":
            patch.setattr(files, "SPARE_BYTES", 1 << 60)
        else:
            patch.setattr("engine.models.incoming.write_all", refuse)
        with pytest.raises(ModelError, match=r"Node b cannot have one.gguf: it needs 307 kB more on the disk of"):
            send_model(offer, node, tell, 64 * KIB)
        assert not node.shown()
    check_is_whole(send_model(offer, node, tell), offer)


def test_a_file_that_changes_while_it_is_sent_is_an_error(front: Path, node: DiskNode) -> None:
    offer = write_model(front, "one file")

    def change(share: float, _doing: str) -> None:
        if share > 0.4:
            os.utime(offer.path, ns=(0, 1))

    with pytest.raises(ModelError, match=r"one\.gguf: changed while it was sent to node b"):
        send_model(offer, node, change, 16 * KIB)
    assert not node.shown()


def test_a_node_that_does_not_answer_is_an_error(front: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()
    node = DiskNode(tmp_path / "node", fault=lambda number: (number == 3 and held.wait(60) and None) or None)
    monkeypatch.setattr(file_sending, "ANSWERS_WITHIN_S", 0.3)
    try:
        with pytest.raises(ModelError, match="Node b did not answer for 0.3 s"):
            send_model(write_model(front, "one file"), node, tell, 16 * KIB)
    finally:
        held.set()
        node.close()


def test_old_data_of_a_broken_transfer_is_removed(front: Path, tmp_path: Path) -> None:
    offer, home = write_model(front, "one file"), tmp_path / "home"
    node = NodeFiles(home)
    node.offer({**offer.to_dict(), "path": "/elsewhere/one.gguf"}, "a")
    node.block(offer.key, "a", 0, 0, b"x")
    node.close()
    (partial,) = (home / "cluster" / "models" / offer.key).iterdir()
    NodeFiles(home)
    assert partial.exists()
    os.utime(partial, (0, 0))
    NodeFiles(home)
    assert not partial.exists()


def test_a_block_is_no_larger_than_agreed(front: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_files, "BLOCK_BYTES", 10)
    offer, node = write_model(front, "one file"), NodeFiles(tmp_path / "home")
    node.offer({**offer.to_dict(), "path": "/elsewhere/one.gguf"}, "a")
    assert "the most is 10" in node.block(offer.key, "a", 0, 0, bytes(11)).error


def test_the_offer_of_a_model_has_the_hashes_of_its_files(story_model: Path, story_folder: Path) -> None:
    shares: list[float] = []
    for path in (story_model, story_folder):
        offer = model_offer(read_model(path), lambda share, _doing: shares.append(share))
        assert [(one.name, one.size, one.sha256) for one in offer.files] == [
            (place.name, place.stat().st_size, hashlib.sha256(place.read_bytes()).hexdigest())
            for place in offer.places()
        ]
        assert offer.places() == list(read_model(path).files)
    assert shares and max(shares) == 1


def test_a_model_with_a_name_that_no_node_takes_is_an_error_that_says_what_to_do(
    story_model: Path, tmp_path: Path
) -> None:
    hidden = tmp_path / ".story.gguf"
    shutil.copy(story_model, hidden)
    with pytest.raises(ModelError, match="rename it"):
        model_offer(read_model(hidden))
    gone = read_model(story_model)
    with pytest.raises(ModelError, match="cannot be read"):
        model_offer(replace(gone, path=tmp_path / "none.gguf"))

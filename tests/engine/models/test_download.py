"""Downloads from a local server that speaks the hub's protocol: complete, broken, resumed, refused, wrong."""

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import pytest

from engine.errors import DownloadError, JobTimeout, NetworkError
from engine.models import incoming
from engine.models.catalogue import choose
from engine.models.download import Download
from engine.models.hub import LARGEST_FILE, Repository, read_repository
from engine.models.identity import known_hashes
from engine.models.incoming import RemoteFile
from tests.engine.models.conftest import DATA, FILE, NAME, Get, partials
from tests.engine.models.hub_server import Hub


def test_a_file_comes_whole_to_a_place_of_its_repository(get: Get, folder: Path) -> None:
    download = get()
    assert download.result(60) == (folder / NAME / FILE,)
    assert (folder / NAME / FILE).read_bytes() == DATA
    assert partials(folder) == []
    assert (download.state, download.num_bytes, download.total_bytes) == ("done", len(DATA), len(DATA))


def test_its_hash_is_known_from_then_on(get: Get, folder: Path) -> None:
    get().result(60)
    path = folder / NAME / FILE
    assert known_hashes([path]) == {path: hashlib.sha256(DATA).hexdigest()}


def test_the_server_of_these_tests_serves_the_library_too(hub: Hub, tmp_path: Path) -> None:
    path = huggingface_hub.hf_hub_download(NAME, FILE, endpoint=hub.endpoint, local_dir=tmp_path / "theirs")
    assert Path(path).read_bytes() == DATA


def test_several_files_come_one_after_the_other_the_small_ones_by_gits_hash(hub: Hub, folder: Path) -> None:
    hub.repositories[NAME] |= {"sub/second.gguf": DATA[::-1], "empty.txt": b""}
    repository = read_repository(NAME, hub.endpoint)
    paths = Download(repository, repository.files, folder).start().result(60)
    assert [path.relative_to(folder / NAME).as_posix() for path in paths] == list(hub.repositories[NAME])
    assert [path.read_bytes() for path in paths] == list(hub.repositories[NAME].values())


def test_a_stopped_download_goes_on_where_it_stopped(hub: Hub, get: Get, folder: Path) -> None:
    hub.pace.clear()
    download = get()
    assert hub.sent.wait(60)
    with pytest.raises(JobTimeout):
        download.result(0.01)
    download.stop()
    hub.pace.set()
    with pytest.raises(DownloadError, match="stopped. The downloaded part is saved"):
        download.result(60)
    (kept,) = partials(folder)
    num_kept = kept.stat().st_size
    assert download.state == "stopped"
    assert 0 < num_kept < len(DATA) and DATA.startswith(kept.read_bytes())
    again = get()
    assert again.result(60)[0].read_bytes() == DATA
    assert hub.ranges == ["", f"bytes={num_kept}-"]


def test_a_new_download_tells_what_had_come_and_can_throw_it_away(hub: Hub, get: Get, folder: Path) -> None:
    hub.breaks = [40_000] + [0] * 3
    with pytest.raises(NetworkError):
        get().result(60)
    (kept,) = partials(folder)
    repository = read_repository(NAME, hub.endpoint)
    download = Download(repository, choose(repository).files, folder)
    assert (download.state, download.num_bytes) == ("waiting", kept.stat().st_size)
    download.discard()
    assert partials(folder) == []


def test_a_broken_connection_is_taken_up_again(hub: Hub, get: Get) -> None:
    hub.breaks = [100_000, 50_000]
    assert get().result(60)[0].read_bytes() == DATA
    first, *others = hub.ranges
    assert first == "" and len(others) == 2 and all(asked.startswith("bytes=") for asked in others)


def test_a_connection_that_keeps_breaking_is_said_and_what_came_is_kept(hub: Hub, get: Get, folder: Path) -> None:
    hub.breaks = [100_000, 0, 0]
    with pytest.raises(NetworkError, match="of 300 kB|of 0.300 MB") as failure:
        get().result(60)
    assert "are saved; start it again" in str(failure.value)
    assert get().result(60)[0].read_bytes() == DATA


def test_a_server_that_cannot_begin_in_the_middle_sends_all_again(hub: Hub, get: Get) -> None:
    hub.breaks, hub.takes_ranges = [100_000], False
    assert get().result(60)[0].read_bytes() == DATA


def test_a_wrong_checksum_leaves_nothing_behind(hub: Hub, get: Get, folder: Path) -> None:
    hub.is_corrupt = True
    with pytest.raises(DownloadError, match="wrong checksum"):
        get().result(60)
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_what_had_come_is_not_trusted(hub: Hub, get: Get, folder: Path) -> None:
    hub.breaks = [100_000, 0, 0]
    with pytest.raises(NetworkError):
        get().result(60)
    (kept,) = partials(folder)
    with kept.open("r+b") as file:
        file.write(b"something else")
    with pytest.raises(DownloadError, match="wrong checksum"):
        get().result(60)
    assert partials(folder) == []
    assert get().result(60)[0].read_bytes() == DATA


def test_more_than_was_announced_is_thrown_away(hub: Hub, get: Get, folder: Path) -> None:
    hub.extra = b"and more"
    with pytest.raises(DownloadError, match="more than its 300,000 bytes arrived"):
        get().result(60)
    assert partials(folder) == []


def test_an_answer_that_begins_elsewhere_is_not_mixed_in(hub: Hub, get: Get) -> None:
    hub.breaks, hub.shift = [100_000], 1
    with pytest.raises(DownloadError, match="sends .* instead of"):
        get().result(60)
    hub.shift = 0
    assert get().result(60)[0].read_bytes() == DATA


def test_what_lies_there_whole_is_not_fetched_again(hub: Hub, get: Get) -> None:
    get().result(60)
    hub.asked.clear()
    assert get().result(60)[0].read_bytes() == DATA
    assert hub.asked == []


def test_a_newer_file_takes_the_place_of_the_older(hub: Hub, get: Get) -> None:
    get().result(60)
    hub.repositories[NAME][FILE] = DATA[::-1]
    assert get().result(60)[0].read_bytes() == DATA[::-1]


def test_two_downloads_of_one_file_do_not_mix(hub: Hub, get: Get, folder: Path) -> None:
    hub.pace.clear()
    first = get()
    assert hub.sent.wait(60)
    with pytest.raises(DownloadError, match="already being downloaded"):
        get().result(60)
    hub.pace.set()
    assert first.result(60)[0].read_bytes() == DATA


def test_a_file_that_went_away_meanwhile_is_said(hub: Hub, folder: Path) -> None:
    repository = read_repository(NAME, hub.endpoint)
    del hub.repositories[NAME][FILE]
    with pytest.raises(DownloadError, match=f"The hub has no {NAME}, {FILE}"):
        Download(repository, choose(repository).files, folder).start().result(60)


def test_a_gated_file_needs_the_librarys_own_login_which_stays_with_the_hub(hub: Hub, get: Get, login: Path) -> None:
    hub.gated.add(NAME)
    assert read_repository(NAME, hub.endpoint).is_gated
    with pytest.raises(DownloadError, match="is gated.*hf auth login"):
        get().result(60)
    login.write_text("hf_of_this_test\n")
    hub.needs_token = "hf_of_this_test"
    assert get().result(60)[0].read_bytes() == DATA
    sent = {asked.origin: asked.authorization for asked in hub.asked}
    assert sent == {"hub": "Bearer hf_of_this_test", "storage": ""}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "open_locked", lambda _path: os.fdopen(os.open("/dev/full", os.O_RDWR), "r+b", 0))
    with pytest.raises(DownloadError, match="is full.*free some space"):
        get().result(60)


@pytest.mark.parametrize("kind", ["link", "second name"])
def test_a_partial_file_that_leads_elsewhere_is_not_written(
    get: Get, hub: Hub, folder: Path, tmp_path: Path, kind: str
) -> None:
    hub.breaks = [40_000] + [0] * 2
    with pytest.raises(NetworkError):
        get().result(60)
    (kept,) = partials(folder)
    kept.unlink()
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    kept.symlink_to(other) if kind == "link" else kept.hardlink_to(other)
    with pytest.raises(DownloadError, match="cannot be written"):
        get().result(60)
    assert other.read_bytes() == b"mine"


def test_too_little_room_is_said_before_anything_is_fetched(hub: Hub, folder: Path) -> None:
    hub.repositories[NAME] = {f"part{number}.gguf": b"" for number in range(1000)}
    hub.claimed_sizes = dict.fromkeys(hub.repositories[NAME], LARGEST_FILE)
    repository = read_repository(NAME, hub.endpoint)
    with pytest.raises(DownloadError, match="is free. Nothing was downloaded"):
        Download(repository, repository.files, folder).start().result(60)
    assert hub.asked == []


def test_a_folder_that_cannot_be_written_is_said(hub: Hub, folder: Path) -> None:
    folder.write_text("a file in its place")
    repository = read_repository(NAME, hub.endpoint)
    with pytest.raises(DownloadError, match="cannot be written"):
        Download(repository, repository.files, folder).start().result(60)


def test_a_file_larger_than_the_hub_sends_is_refused_with_the_way_that_works(folder: Path) -> None:
    repository = Repository(NAME, "0" * 40, "", False, ())
    with pytest.raises(DownloadError, match=f"`hf download {NAME} huge.gguf`"):
        Download(repository, [RemoteFile("huge.gguf", LARGEST_FILE + 1, "ab" * 32, "")], folder)


@pytest.mark.parametrize(
    "path",
    ["../up.gguf", "/etc/x.gguf", "a/../../../x.gguf", "a\\b.gguf", "a\nb.gguf", "a\u202eb.gguf", ".", "ä" * 101],
)
def test_a_file_name_that_leads_out_or_hides_is_refused(folder: Path, path: str) -> None:
    repository = Repository(NAME, "0" * 40, "", False, ())
    with pytest.raises(DownloadError, match="cannot be saved in"):
        Download(repository, [RemoteFile(path, 1, "ab" * 32, "")], folder)


def test_a_link_out_of_the_folder_is_not_followed(hub: Hub, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.mkdir()
    (folder / "somebody").symlink_to(tmp_path / "elsewhere")
    repository = read_repository(NAME, hub.endpoint)
    with pytest.raises(DownloadError, match="cannot be saved in"):
        Download(repository, repository.files, folder)


@contextmanager
def another_program(hub: Hub, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that downloads all of the small repository and gets the hub's address from its environment."""
    program = (
        "import sys; from engine.models.hub import read_repository; from engine.models.download import Download\n"
        "repository = read_repository(sys.argv[1])\n"
        "Download(repository, repository.files, sys.argv[2]).start().result(60)"
    )
    command = [sys.executable, "-c", program, NAME, str(folder)]
    with subprocess.Popen(command, env=os.environ | {"HF_ENDPOINT": hub.endpoint}) as running:
        try:
            yield running
        finally:
            running.kill()


def test_a_mirror_is_taken_from_the_librarys_own_variable(hub: Hub, folder: Path) -> None:
    with another_program(hub, folder) as running:
        assert running.wait(60) == 0
    assert (folder / NAME / FILE).read_bytes() == DATA


def test_a_program_that_was_killed_leaves_what_had_come(hub: Hub, get: Get, folder: Path) -> None:
    hub.pace.clear()
    with another_program(hub, folder) as running:
        assert hub.sent.wait(60)
        for _turn in range(6000):
            if partials(folder) and partials(folder)[0].stat().st_size:
                break
            time.sleep(0.01)
        running.kill()
        running.wait(60)
    hub.pace.set()
    (kept,) = partials(folder)
    num_kept = kept.stat().st_size
    assert get().result(60)[0].read_bytes() == DATA
    assert num_kept > 0 and hub.ranges[-1] == f"bytes={num_kept}-"


def test_a_partial_file_is_locked_for_other_programs(hub: Hub, get: Get, folder: Path) -> None:
    hub.pace.clear()
    download = get()
    assert hub.sent.wait(60)
    (kept,) = partials(folder)
    with kept.open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    hub.pace.set()
    download.result(60)

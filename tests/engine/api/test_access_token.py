"""Access token file: private, kept across restarts, replaced if others may have seen it."""

import os
import stat
from pathlib import Path

import pytest

from engine.api.access_token import AccessToken


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_file_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        token = AccessToken(tmp_path / "home")
        text = token.text()
    finally:
        os.umask(before)
    assert stat.S_IMODE(token.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(token.path.parent.stat().st_mode) == 0o700
    assert list(token.path.parent.iterdir()) == [token.path]
    assert len(text) >= 43


def test_it_is_kept_and_a_deleted_one_is_made_anew(tmp_path: Path) -> None:
    first = AccessToken(tmp_path)
    assert AccessToken(tmp_path).text() == first.text()
    first.path.unlink()
    assert AccessToken(tmp_path).text() != first.text()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o620])
def test_one_that_others_could_reach_is_replaced(tmp_path: Path, mode: int) -> None:
    first = AccessToken(tmp_path).text()
    (tmp_path / "access-token").chmod(mode)
    again = AccessToken(tmp_path)
    assert again.text() != first
    assert stat.S_IMODE(again.path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_one_of_another_user_is_replaced(tmp_path: Path) -> None:
    first = AccessToken(tmp_path).text()
    os.chown(tmp_path / "access-token", 12345, 12345)
    assert AccessToken(tmp_path).text() != first


@pytest.mark.parametrize("content", ["", "short", "\n"])
def test_a_damaged_one_is_replaced(tmp_path: Path, content: str) -> None:
    token = AccessToken(tmp_path)
    token.path.write_text(content)
    token.path.chmod(0o600)
    assert len(token.text()) >= 43


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("x" * 64)
    elsewhere.chmod(0o600)
    (tmp_path / "access-token").symlink_to(elsewhere)
    with pytest.raises(OSError):
        AccessToken(tmp_path).text()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "access-token", 0o600)
    assert len(AccessToken(tmp_path).text()) >= 43
    assert stat.S_ISREG((tmp_path / "access-token").stat().st_mode)

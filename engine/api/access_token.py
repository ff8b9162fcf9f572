"""The access token: a secret file of the home folder, for peers whose user id cannot be told."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from engine.private_files import write_private

FILE = "access-token"
_MIN_LENGTH = 32


class AccessToken:
    """A random token in a file of mode 0600, made when first asked for and kept across restarts.

    A file that others could read, or that another user wrote, is replaced: its token may be known. Delete the file to
    make a new token.
    """

    def __init__(self, home: Path) -> None:
        self.path = home / FILE
        self._text = ""

    def text(self) -> str:
        """The token. Raises OSError where the file can be neither read nor written."""
        if not self._text:
            self._text = self._kept() or self._made()
        return self._text

    def is_token(self, given: str) -> bool:
        """True for the token. Raises OSError as `text`."""
        return hmac.compare_digest(given.encode(), self.text().encode())

    def cookie(self) -> str:
        """Value of the cookie that the token is exchanged for; the token cannot be read from it. Raises as `text`."""
        return hmac.new(self.text().encode(), b"logitbench cookie", hashlib.sha256).hexdigest()

    def _kept(self) -> str:
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return ""
        with os.fdopen(file, encoding="ascii", errors="replace") as opened:
            status = os.fstat(opened.fileno())
            is_private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
            text = opened.read(1024).strip()
        return text if is_private and len(text) >= _MIN_LENGTH else ""

    def _made(self) -> str:
        text = secrets.token_urlsafe(32)
        write_private(self.path, f"{text}\n".encode())
        return text

"""Access token: a secret file in the home folder, for peers whose user id cannot be determined."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from engine.files import write_private

FILE = "access-token"
_MIN_LENGTH = 32


class AccessToken:
    """A random token in a file of mode 0600, created on first use and reused across restarts.

    A file that other users could read, or that another user wrote, is replaced, because its token may be known. To get
    a new token, delete the file.
    """

    def __init__(self, home: Path, name: str = FILE) -> None:
        self.path = home / name
        self._text = ""

    def text(self) -> str:
        """Return the token. Raises OSError where the file can be neither read nor written."""
        if not self._text:
            self._text = self._kept() or self._made()
        return self._text

    def is_token(self, given: str) -> bool:
        """Return whether `given` is the token. Raises OSError as `text` does."""
        return hmac.compare_digest(given.encode(), self.text().encode())

    def cookie(self) -> str:
        """Return the value of the cookie issued for the token: an HMAC that does not reveal it. Raises as `text`."""
        return hmac.new(self.text().encode(), b"logitbench cookie", hashlib.sha256).hexdigest()

    def _kept(self) -> str:
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
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

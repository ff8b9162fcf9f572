"""Addresses of servers: checked before anything is sent, without the parts that must not be in them."""

import os
import re
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from engine.errors import ConfigError, quoted

MOST_CHARACTERS = 500
_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_KEY = re.compile(r"[\x21-\x7e]{1,4096}")
_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]{1,100}){0,8}")


class Address(NamedTuple):
    """Address of a server: where the paths of its API begin, without the /v1."""

    root: str

    @property
    def host(self) -> str:
        """Name or number of the host."""
        return urlsplit(self.root).hostname or ""

    @property
    def is_loopback(self) -> bool:
        """Whether the server runs on this machine, as far as its name says."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def is_address(text: str) -> bool:
    """Return whether a text is meant as the address of a server, not as a path."""
    return text.lower().startswith(("http://", "https://"))


def checked_address(text: object) -> Address:
    """Return the address of a server, with or without its /v1.

    Raises ConfigError for another scheme than http and https, and for an address with a name, a password, a query or a
    fragment: a key does not belong there, as addresses are stored and shown.
    """
    if not isinstance(text, str) or not is_address(text.strip()) or len(text) > MOST_CHARACTERS:
        shown = quoted(text) if not isinstance(text, str) or "@" not in text else "the address"
        raise ConfigError(f"{shown}: must be the address of a server, such as http://localhost:8080")
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ConfigError("The address of the server is malformed: write it as http://host:port") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            "The address holds a password, a key or a query, which would be stored and shown with it: leave it out, "
            "and name the environment variable that has the key"
        )
    if not _HOST.fullmatch(host) or not _PATH.fullmatch(path := parts.path.rstrip("/")):
        raise ConfigError(
            "The address of the server is malformed: write it as http://host:port, or with /v1 at its end"
        )
    name = f"[{host}]" if ":" in host else host
    return Address(f"{parts.scheme.lower()}://{name}{'' if port is None else f':{port}'}{path.removesuffix('/v1')}")


def checked_variable(name: object) -> str:
    """Return the name of an environment variable, "" for none. Raises ConfigError for anything else."""
    if not isinstance(name, str) or (name and not _VARIABLE.fullmatch(name)):
        raise ConfigError(
            "api_key_env: must be the name of an environment variable that has the key, not the key itself"
        )
    return name


def key_of(variable: object) -> str:
    """Return the key in an environment variable, "" for no variable. Raises ConfigError where it has no key."""
    name = checked_variable(variable)
    if not name:
        return ""
    key = os.environ.get(name, "").strip()
    if not _KEY.fullmatch(key):
        raise ConfigError(f"The environment variable {name} has no key: set it, then start again")
    return key

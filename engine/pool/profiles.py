"""Profiles: files with a model and the parameters of its pool."""

from pathlib import Path
from typing import Any

import msgspec

from engine.errors import ConfigError
from engine.files import decoded_json, named_path, read_regular
from engine.specs import PoolSpec

_MOST_BYTES = 1 << 20


class _Profile(msgspec.Struct, frozen=True):
    pool: dict[str, Any]
    model: str = ""


def read_profile(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Return a profile's model, empty where it names none, and the parameters of its pool.

    Raises ConfigError for what is no profile: JSON with "model" (a path) and "pool" (a PoolSpec).
    """
    try:
        profile = decoded_json(read_regular(named_path(path), _MOST_BYTES), _Profile)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: is not a profile ({error!r})") from error
    return profile.model, PoolSpec.from_dict(profile.pool).to_dict()

"""The fingerprint of this machine."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine import ConfigError
from engine.bench.measuring.machine import about_llama, fingerprint, fingerprint_hash, versions


def test_the_fingerprint_is_plain_and_stays_the_same() -> None:
    machine = fingerprint()
    assert json.loads(json.dumps(machine)) == machine
    assert fingerprint_hash(machine) == fingerprint_hash(fingerprint())
    assert machine["threads"] >= len(machine["allowed_cores"]) >= 1
    assert machine["llama"]["commit"] and "CPU" in machine["llama"]["features"]


def test_every_part_of_it_counts() -> None:
    machine = fingerprint()
    hashes = {fingerprint_hash(machine | {name: "another"}) for name in machine}
    assert len(hashes) == len(machine)
    assert fingerprint_hash(machine) not in hashes


def test_a_build_is_asked_for_its_own_libraries() -> None:
    package = find_spec("llama_cpp")
    assert package is not None and package.origin is not None
    assert about_llama(str(Path(package.origin).parent / "lib")) == about_llama()


def test_a_folder_without_libraries_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        fingerprint(str(tmp_path))


def test_versions_name_what_timings_depend_on() -> None:
    assert {"python", "llama-cpp-python", "numpy"} <= set(versions())

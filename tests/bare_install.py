"""An environment that holds a wheel and what it declares, and nothing else, made of what is installed here."""

import os
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from venv import EnvBuilder

from packaging.requirements import Requirement


def make_environment(folder: Path, wheel: Path) -> Path:
    """A virtual environment in `folder`: the wheel unpacked, its dependencies as links to files; gives its python."""
    EnvBuilder(symlinks=True, with_pip=False).create(folder)
    site = folder.joinpath("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (metadata,) = site.glob("*.dist-info")
    for needed in closure(Distribution.at(metadata).requires or ()):
        link(needed, site)
    return folder / "bin" / "python"


def closure(requirements: Iterable[str]) -> Iterator[Distribution]:
    """What these requirements bring, and what that brings, each once; extras only where they are asked for."""
    wanted = [(Requirement(text), "") for text in requirements]
    seen = set()
    while wanted:
        requirement, extra = wanted.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        found = distribution(requirement.name)
        assert requirement.specifier.contains(found.version, prereleases=True), f"{requirement}, here {found.version}"
        for own in ("", *requirement.extras):
            if (found.name, own) not in seen:
                seen.add((found.name, own))
                wanted += [(Requirement(text), own) for text in found.requires or ()]
                if not own:
                    yield found


def link(needed: Distribution, site: Path) -> None:
    """Link each file of a distribution; programs beside the packages are left out."""
    here = Path(sysconfig.get_path("purelib"))
    for file in needed.files or ():
        source, target = here / file, site / file
        if ".." not in file.parts and source.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(source, target)

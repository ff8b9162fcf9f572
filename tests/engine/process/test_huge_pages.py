"""Huge pages: workers ask glibc for them, unless the person has decided otherwise."""

import re
from pathlib import Path

import pytest

from engine.machine.fingerprint import fingerprint
from engine.models.library import embedded_model
from engine.pool.pool import Pool
from engine.process.child import huge_pages


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=3", "glibc.malloc.check=3:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_the_tunables_that_a_person_has_set_stay(monkeypatch: pytest.MonkeyPatch, given: str, expected: str) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", given)
    assert huge_pages() == {"GLIBC_TUNABLES": expected}


def test_the_weights_of_a_worker_lie_in_huge_pages() -> None:
    if fingerprint()["huge_pages"] not in ("always", "madvise"):
        pytest.skip("this system gives no huge pages")
    with Pool(embedded_model(), parallel=1) as pool:
        (worker,) = pool.workers()
        rollup = Path(f"/proc/{worker.pid}/smaps_rollup").read_text()
    (found,) = re.findall(r"AnonHugePages: +(\d+) kB", rollup)
    assert int(found) > 4096

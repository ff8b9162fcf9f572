"""Quantising: sizes known in advance, targets complete or absent, and every way in which it can fail."""

import os
import resource
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.errors import ConfigError, EngineError, JobTimeout, ModelError, WorkerDied
from engine.models import quantise
from engine.models.ggml import FILE_TYPES
from engine.models.gguf import ModelFile
from engine.models.quantisations import TYPES, Offer, offers, target_path, variants
from engine.models.quantise import QuantiseJob
from engine.models.quantise_program import QuantiseProgram
from engine.models.reading import read_model
from engine.models.shapes import free_form
from engine.models.synthetic import write_synthetic
from engine.process.channel import Channel
from engine.process.child import Child
from engine.process.serving import Reply
from tests.engine.models import headers
from tests.processes import children_with
from tests.waiting import until

WITHIN_S = 60.0


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    """Model that takes seconds to quantise to a type that requires a search."""
    path = tmp_path_factory.mktemp("large") / "large-F32.gguf"
    write_synthetic(free_form(layers=6, width=1024, vocab=4096), path, "F32")
    return read_model(path)


@pytest.fixture(scope="module")
def offered(source: ModelFile) -> dict[str, Offer]:
    return {offer.name: offer for offer in offers(source)}


def made(source: ModelFile, type_name: str, folder: Path, imatrix: Path | None = None) -> ModelFile:
    target = target_path(source, type_name, folder)
    job = QuantiseJob(source, type_name, target, threads=2, imatrix=imatrix, may_requantise=True).start()
    assert job.result(WITHIN_S) == target
    assert (job.state, job.share) == ("done", 1)
    assert os.listdir(folder) == [target.name]
    return read_model(target)


def split(model: ModelFile, folder: Path) -> Path:
    """Write the same model as two files, and return the first of them."""
    raw = model.path.read_bytes()
    num_keys = struct.unpack_from("<Q", raw, 16)[0]
    keys = raw[24 : raw.index(headers.text(model.tensors[0].name))]
    half = len(model.tensors) // 2
    for number, tensors in enumerate((model.tensors[:half], model.tensors[half:])):
        start = tensors[0].offset
        own = [headers.tensor(one.name, one.shape, one.type.number, one.offset - start) for one in tensors]
        said = [
            headers.key("split.no", 2, struct.pack("<H", number)),
            headers.key("split.count", 2, struct.pack("<H", 2)),
            headers.key("split.tensors.count", 5, struct.pack("<i", len(model.tensors))),
        ]
        data = raw[start : tensors[-1].offset + tensors[-1].num_bytes]
        part = headers.gguf([keys, *said], own, data, num_keys=num_keys + len(said))
        (folder / f"tiny-F16-{number + 1:05}-of-00002.gguf").write_bytes(part)
    return folder / "tiny-F16-00001-of-00002.gguf"


# Offers


def test_every_type_is_offered_with_its_size_the_largest_first(offered: dict[str, Offer]) -> None:
    assert set(offered) == set(TYPES) - {"MXFP4_MOE"}
    bits = [offer.bits_per_weight for offer in offered.values()]
    assert bits == sorted(bits, reverse=True)
    assert next(iter(offered)) == "F32"
    assert 31.9 < offered["F32"].bits_per_weight <= 32
    assert 8.5 < offered["Q8_0"].bits_per_weight < 8.6
    assert 4.5 < offered["Q4_K_M"].bits_per_weight < 5.5
    assert "trained" in offered["TQ1_0"].remark


def test_what_cannot_be_done_says_why(offered: dict[str, Offer]) -> None:
    refused = {name for name, offer in offered.items() if offer.refusal}
    assert {name for name in refused if "importance matrix" in offered[name].refusal} == {
        "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS", "Q2_K_S",
    }  # fmt: skip
    assert "already has this type" in offered["F16"].refusal


def test_llama_cpp_makes_all_types_but_one(source: ModelFile) -> None:
    program = QuantiseProgram()
    failed = {name for number, name in FILE_TYPES.items() if "failure" in program.quantise(source.path, number)}
    program.close()
    assert failed == set(FILE_TYPES.values()) - set(TYPES) == {"NVFP4"}


def test_a_quantised_model_is_quantised_again_only_on_request(story_model: Path) -> None:
    file = read_model(story_model)
    refused = {offer.name: offer.refusal for offer in offers(file)}
    assert "already quantised (Q8_0)" in refused["Q4_0"]
    assert not next(offer for offer in offers(file, may_requantise=True) if offer.name == "Q4_0").refusal


# Results


@pytest.mark.slow
@pytest.mark.parametrize("type_name", ["Q4_K_M", "Q8_0", "BF16", "F32", "IQ4_XS", "TQ2_0"])
def test_a_target_is_as_large_as_was_said(
    type_name: str, source: ModelFile, offered: dict[str, Offer], tmp_path: Path
) -> None:
    file = made(source, type_name, tmp_path)
    assert file.quantisation == type_name
    assert file.num_parameters == source.num_parameters
    assert 8 * file.weights_bytes / file.num_parameters == offered[type_name].bits_per_weight
    assert abs(file.size - offered[type_name].num_bytes) < 256


def test_a_model_in_several_files_becomes_one(source: ModelFile, tmp_path: Path) -> None:
    first = split(source, tmp_path)
    file = read_model(first)
    assert (file.parts, file.weights_bytes) == (2, source.weights_bytes)
    whole, folder = tmp_path / "whole.gguf", tmp_path / "made"
    folder.mkdir()
    QuantiseJob(source, "Q4_0", whole, threads=1).start().result(WITHIN_S)
    one = made(file, "Q4_0", folder)
    assert one.path.name == "tiny-Q4_0.gguf"
    assert one.parts == 1
    assert one.path.read_bytes() == whole.read_bytes()
    for part in file.files:
        with pytest.raises(ConfigError, match="is the source model itself"):
            QuantiseJob(file, "Q4_0", part, threads=1)


def test_quantised_again_on_request(story_model: Path, tmp_path: Path) -> None:
    file = read_model(story_model)
    smaller = made(file, "Q4_0", tmp_path)
    assert smaller.size < 0.7 * file.size


def test_the_name_of_the_target_has_the_new_quantisation(source: ModelFile, tmp_path: Path) -> None:
    assert target_path(source, "Q4_K_M") == source.path.with_name("tiny-Q4_K_M.gguf")
    assert target_path(source, "Q8_0", tmp_path) == tmp_path / "tiny-Q8_0.gguf"


def test_names_with_odd_characters(source: ModelFile, tmp_path: Path) -> None:
    odd = tmp_path / "a b'\"$é\n模型\\.gguf"
    odd.write_bytes(source.path.read_bytes())
    file = read_model(odd)
    target = target_path(file, "Q4_0")
    QuantiseJob(file, "Q4_0", target, threads=1).start().result(WITHIN_S)
    assert target.name == "a b'\"$é\n模型\\-Q4_0.gguf"
    assert read_model(target).quantisation == "Q4_0"


def test_variants_are_the_same_model_and_no_other(source: ModelFile, story_model: Path, tmp_path: Path) -> None:
    small = made(source, "Q4_0", tmp_path)
    other = tmp_path / "other.gguf"
    write_synthetic("tiny", other, "Q8_0", seed=1)
    files = [small, read_model(other), read_model(story_model), source]
    assert variants(source, files) == (source, small)
    assert variants(small, files) == (small, source)


# Failures


def test_the_source_is_never_the_target(source: ModelFile, tmp_path: Path) -> None:
    before = source.path.read_bytes()
    link, hard = tmp_path / "link.gguf", tmp_path / "hard.gguf"
    link.symlink_to(source.path)
    hard.hardlink_to(source.path)
    for target in (source.path, link, hard, tmp_path / ".." / source.path.parent.name / source.path.name):
        with pytest.raises(ConfigError, match="is the source model itself"):
            QuantiseJob(source, "Q4_0", target, threads=1)
    assert source.path.read_bytes() == before


def test_targets_that_cannot_be_one(source: ModelFile, tmp_path: Path) -> None:
    (tmp_path / "there.gguf").touch()
    for target, said in (
        (tmp_path / "there.gguf", "already exists"),
        (tmp_path / "x" / "y.gguf", "no such folder"),
        (tmp_path / "y.bin", "must end in .gguf"),
    ):
        with pytest.raises(ConfigError, match=said):
            QuantiseJob(source, "Q4_0", target, threads=1)
    with pytest.raises(ConfigError, match="must be one of F32, F16"):
        QuantiseJob(source, "Q4_9", tmp_path / "z.gguf", threads=1)


def test_cancel_ends_it_at_once_and_leaves_nothing(large: ModelFile, tmp_path: Path) -> None:
    job = QuantiseJob(large, "Q3_K_L", tmp_path / "target.gguf", threads=1).start()
    until(lambda: job.share > 0)
    assert (job.state, " of " in job.doing) == ("running", True)
    assert 0 < job.share <= 1
    assert job.left_s is not None and job.left_s >= 0
    with pytest.raises(JobTimeout, match="target.gguf did not finish within 0.01 s; it continues"):
        job.result(0.01)
    job.stop()
    with pytest.raises(EngineError, match="stopped"):
        job.result(WITHIN_S)
    assert job.state == "stopped"
    assert not os.listdir(tmp_path)


def test_a_program_that_is_killed_is_said_and_leaves_nothing(large: ModelFile, tmp_path: Path) -> None:
    job = QuantiseJob(large, "Q3_K_L", tmp_path / "target.gguf", threads=1).start()
    until(lambda: job.share > 0)
    for child in programs():
        child.send_signal(signal.SIGKILL)
    with pytest.raises(WorkerDied, match="was killed"):
        job.result(WITHIN_S)
    assert job.state == "failed"
    assert not os.listdir(tmp_path)


def test_the_program_leaves_nothing_when_whoever_started_it_is_gone(large: ModelFile, tmp_path: Path) -> None:
    target = tmp_path / "target"
    job = {"source": str(large.path), "file_type": TYPES["Q3_K_L"], "target": str(target)}
    child = Child("engine.llama.quantise")
    Channel(child.socket, Reply).send(job)
    until(lambda: target.exists() and target.stat().st_size > 0)
    child.close(patience_s=WITHIN_S)
    assert child.ending() == "exited with status 0"
    assert not os.listdir(tmp_path)


def test_two_jobs_do_not_write_the_same_target(large: ModelFile, tmp_path: Path) -> None:
    first = QuantiseJob(large, "Q3_K_L", tmp_path / "target.gguf", threads=1).start()
    until(lambda: first.share > 0)
    with pytest.raises(ModelError, match="is already being written"):
        QuantiseJob(large, "Q4_0", tmp_path / "target.gguf", threads=1).start().result(WITHIN_S)
    assert first.state == "running"
    first.stop()
    with pytest.raises(EngineError, match="stopped"):
        first.result(WITHIN_S)


def test_a_disk_without_room_is_said_before_anything_is_written(
    source: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantise, "SPARE_BYTES", 1 << 60)
    with pytest.raises(ModelError, match=r"needs 3\.\d+ MB on the disk of .* is free"):
        QuantiseJob(source, "Q4_K_M", tmp_path / "target.gguf", threads=1).start().result(WITHIN_S)
    assert not os.listdir(tmp_path)


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Limit the files of every process started now to one megabyte."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_disk")
def test_a_disk_that_fills_up_leaves_nothing(source: ModelFile, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="could not be written.*may be full"):
        QuantiseJob(source, "Q4_K_M", tmp_path / "target.gguf", threads=1).start().result(WITHIN_S)
    assert not os.listdir(tmp_path)


def test_a_folder_that_cannot_be_written(source: ModelFile) -> None:
    with pytest.raises(ModelError, match="cannot be written"):
        QuantiseJob(source, "Q4_0", "/proc/self/target.gguf", threads=1).start().result(WITHIN_S)


def test_a_source_that_is_gone(source: ModelFile, tmp_path: Path) -> None:
    path = tmp_path / "gone.gguf"
    path.write_bytes(source.path.read_bytes())
    file = read_model(path)
    path.unlink()
    with pytest.raises(ModelError, match="there is no such file"):
        QuantiseJob(file, "Q4_0", tmp_path / "target.gguf", threads=1).start().result(WITHIN_S)
    assert all(offer.refusal for offer in offers(file))
    assert not os.listdir(tmp_path)


def programs() -> list[psutil.Process]:
    """Return the quantising programs that this process has started."""
    return children_with("engine.llama.quantise")

"""`python -m engine models synth`: writes a model of random weights."""

import argparse
import time
from pathlib import Path
from typing import Any

from engine.commands.printing import print_json
from engine.errors import ConfigError
from engine.models import read_model
from engine.models.shapes import Shape, free_form, shape_named
from engine.models.synthetic import write_synthetic
from engine.private_files import persons_umask
from engine.progress_line import ProgressLine
from engine.units import parameters, percent, quantity

Given = dict[str, Any]

_FREE_FORM = ("layers", "width", "heads", "kv_heads", "ff", "vocab", "context")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `synth` to the parser of `models`."""
    synth = commands.add_parser(
        "synth", help="write a model of random weights: as fast as a real one of its shape", allow_abbrev=False
    )
    synth.set_defaults(act=_synthesise)
    synth.add_argument("path", metavar="OUT.gguf", help="file to write")
    synth.add_argument("--shape", metavar="NAME", help="shape of a known model, such as llama-2-7b")
    synth.add_argument("--quant", default="Q4_K_M", metavar="TYPE", help="quantisation (default: Q4_K_M)")
    synth.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of the weights (default: 0)")
    synth.add_argument("--json", action="store_true", help="print JSON")
    numbers = synth.add_argument_group("instead of a known shape", "A decoder of the llama family.")
    for name in _FREE_FORM:
        numbers.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N")


def shape_of(given: Given) -> str | Shape:
    """Return the name of a known shape, or a shape from numbers. Raises ConfigError where neither or both are given."""
    numbers = {name: given[name] for name in _FREE_FORM if given[name] is not None}
    if bool(given["shape"]) == bool(numbers):
        raise ConfigError("give either --shape with a name, or --layers and --width")
    if not numbers:
        shape_named(given["shape"])
        return str(given["shape"])
    if not {"layers", "width"} <= numbers.keys():
        raise ConfigError("a shape from numbers needs at least --layers and --width")
    return free_form(**numbers)


def _synthesise(given: Given) -> None:
    path, line, began = Path(given["path"]), ProgressLine(), time.monotonic()
    with persons_umask():
        write_synthetic(
            shape_of(given), path, given["quant"], given["seed"],
            lambda share: line.show(f"writing: {percent(share)}", step=int(10 * share)),
        )  # fmt: skip
    line.end()
    file = read_model(path)
    facts = {"path": str(file.path), "bytes": file.size, "parameters": file.num_parameters}
    if given["json"]:
        print_json({**facts, "seconds": time.monotonic() - began})
    else:
        print(
            f"{file.path}: {quantity(file.size, 'B')}, {parameters(file.num_parameters)} parameters of random weights"
        )

"""`python -m engine models quantize`: quantises a model, or lists the available types with their sizes."""

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from engine.commands.printing import print_json, print_text
from engine.commands.watched import watch
from engine.machine.cores import num_cores
from engine.models import ModelFile, find_model, read_model
from engine.models.quantisations import Offer, offers
from engine.models.quantise import QuantiseJob
from engine.private_files import persons_umask
from engine.settings import Settings
from engine.units import digits, percent, quantity
from engine.workbench.model_files import make_folder, quantisation_path

Given = dict[str, Any]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `quantize` to the parser of `models`."""
    quantize = commands.add_parser(
        "quantize", help="quantise a model; without a type: show the size of each", allow_abbrev=False
    )
    quantize.set_defaults(act=_act)
    quantize.add_argument("model", metavar="MODEL", help="file, or a name from the list")
    quantize.add_argument("type", nargs="?", metavar="TYPE", help="such as Q4_K_M")
    quantize.add_argument(
        "--out",
        metavar="FILE",
        help="default: named after the model, in its folder unless that belongs to another program",
    )
    quantize.add_argument("--imatrix", metavar="FILE", help="importance matrix, as llama-imatrix writes it")
    quantize.add_argument(
        "--again", action="store_true", help="also quantise a model that is already quantised, with loss"
    )
    quantize.add_argument("--threads", type=int, metavar="N", help="default: the cores this process may use")
    quantize.add_argument("--json", action="store_true", help="print JSON")


def _act(given: Given) -> None:
    source = find_model(given["model"])
    if given["type"] is None:
        _show_offers(source, given)
    else:
        _quantise(source, given["type"].upper(), given)


def _quantise(source: ModelFile, type_name: str, given: Given) -> None:
    if given["out"]:
        target = Path(given["out"])
    else:
        target = quantisation_path(source, type_name, Settings.from_environment())
        make_folder(target.parent)
    job = QuantiseJob(
        source, type_name, target, threads=given["threads"] or num_cores(), imatrix=given["imatrix"],
        may_requantise=given["again"],
    )  # fmt: skip
    with persons_umask() if given["out"] else nullcontext():
        path = watch(job)
    made = read_model(path)
    facts = {"path": str(path), "quantisation": made.quantisation, "bytes": made.size, "source_bytes": source.size}
    if given["json"]:
        print_json(facts)
    else:
        share = made.size / source.size
        print_text(f"{path}: {made.quantisation}, {quantity(made.size, 'B')}, {percent(share)} of {source.path.name}")


def _show_offers(source: ModelFile, given: Given) -> None:
    found = offers(source, imatrix=given["imatrix"], may_requantise=given["again"])
    if given["json"]:
        print_json({"source": str(source.path), "bytes": source.size, "types": [_plain(offer) for offer in found]})
    else:
        print_text("\n".join(map(_line, found)))


def _plain(offer: Offer) -> dict[str, Any]:
    return {
        "type": offer.name,
        "bytes": offer.num_bytes,
        "bits_per_weight": offer.bits_per_weight,
        "refusal": offer.refusal,
        "remark": offer.remark,
    }


def _line(offer: Offer) -> str:
    size = f"{quantity(offer.num_bytes, 'B'):>9}  {digits(offer.bits_per_weight)} bits per weight"
    said = "; ".join(filter(None, (offer.refusal and f"not: {offer.refusal}", offer.remark)))
    return f"{offer.name:<9} {size if offer.num_bytes else ''}{'  ' if said else ''}{said}"

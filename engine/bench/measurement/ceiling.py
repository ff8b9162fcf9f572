"""Prefill ceiling: the best prefill speed of this machine for a model, from timing single layers of random weights."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from engine.bench.measurement.clients import Deadline
from engine.bench.measurement.load_generator import LoadGenerator
from engine.bench.measurement.metrics import metrics_of
from engine.bench.planning.plan import Objective, Workload
from engine.errors import ConfigError
from engine.files import scratch_folder
from engine.machine.cores import threads_for
from engine.models.gguf import ModelFile
from engine.models.shapes import ARCHITECTURES, Shape, layers_like
from engine.models.synthetic import QUANTISATIONS, has_more_bits, write_synthetic
from engine.opening import open_engine
from engine.specs import PoolSpec

_SHORTEST, _LONGEST = 32, 2048
_BATCH = 512
_NUM_REPETITIONS = 3
_LEAST_S = 1.0
_TIMEOUT_S = 120.0


class _Layout(NamedTuple):
    instances: int
    parallel: int
    share_weights: bool


def ceiling_key(model: ModelFile, num_prompt: int) -> str:
    """Return a description of everything that the ceiling depends on; equal keys have equal ceilings."""
    return (
        f"{model.architecture} {model.quantisation}, {model.n_layer} layers of {model.n_embd} and {model.n_ff}, "
        f"{model.n_head} heads, {max(model.n_head_kv)} of keys, prompts of {_length(num_prompt)}"
    )


def prefill_ceiling(
    model: ModelFile, num_prompt: int = 512, on_progress: Callable[[float], object] | None = None
) -> float:
    """Measure the prompt tokens per second that no configuration of `model` on this machine should exceed.

    Takes 10 to 60 seconds. One and two layers of random weights are timed, of each kind that the quantisation mixes,
    with all cores, on prompts of the largest power of two up to `num_prompt` (32 to 2,048; shorter ones are faster).
    Two layers minus one is the time of a whole layer; one alone is that of the last layer, of which llama.cpp computes
    only what the next token needs, with everything outside the layers. So the minimal time is that of (number of layers
    − 1) whole ones and the last. The fastest layout counts: one process or two, one prompt or 512 tokens of prompts at
    a time, repacked or shared weights. `on_progress` gets 0 to 1. Raises ConfigError for a model whose layers the
    writer of synthetic models cannot make, ModelError where there is no room for the files.
    """
    shape, length = shape_of(model), _length(num_prompt)
    kinds = _kinds(shape, model.quantisation)
    layouts = [
        _Layout(instances, parallel, share)
        for instances in (1, 2)
        for parallel in sorted({1, max(1, _BATCH // length)})
        for share in (False, True)
    ]
    with scratch_folder(Path(tempfile.gettempdir()), "logitbench-ceiling") as folder:
        files = _Files(shape, model.quantisation, folder)
        times = _Times(files, length, 2 * len(kinds) + len(layouts) - 1, on_progress)
        layout = min(layouts, key=lambda layout: times.of(0, 2, layout))
        alone = {layer: times.of(layer, 1, layout) for layer in kinds}
        whole = {layer: max(0.0, times.of(layer, 2, layout) - alone[layer]) for layer in kinds}
    last = next(layer for layer, like in kinds.items() if shape.n_layer - 1 in like)
    seconds = sum(len(like) * whole[layer] for layer, like in kinds.items()) - whole[last] + alone[last]
    return 1 / seconds


def _length(num_prompt: int) -> int:
    return 1 << (min(max(num_prompt, _SHORTEST), _LONGEST).bit_length() - 1)


def shape_of(model: ModelFile) -> Shape:
    """Return the shape of a model file; raises ConfigError for one that the writer of synthetic models cannot make."""
    if model.is_folder:
        raise ConfigError(f"{model.path.name}: best prefill is that of llama.cpp, which does not run folders")
    usual = model.n_embd // max(model.n_head, 1)
    is_plain = model.head_k == model.head_v and (model.head_k == usual or model.architecture == "gemma3")
    if model.architecture not in ARCHITECTURES or not is_plain or len(set(model.n_head_kv)) > 1:
        raise ConfigError(
            f"{model.path.name}: best prefill cannot be measured for the architecture {model.architecture}; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    if model.quantisation not in QUANTISATIONS:
        raise ConfigError(
            f"{model.path.name}: best prefill cannot be measured for {model.quantisation}; "
            f"supported: {', '.join(QUANTISATIONS)}"
        )
    return Shape(
        architecture=model.architecture,
        n_vocab=max(model.n_vocab, 512),
        n_ctx_train=model.n_ctx_train,
        n_embd=model.n_embd,
        n_layer=model.n_layer,
        n_head=model.n_head,
        n_head_kv=model.n_head_kv[0],
        n_ff=model.n_ff,
        n_rot=model.whole("rope.dimension_count"),
        n_head_width=0 if model.head_k == usual else model.head_k,
    )


def _kinds(shape: Shape, quantisation: str) -> dict[int, list[int]]:
    """Return the first layer of each kind, with the numbers of all layers of that kind."""
    found: dict[bool, list[int]] = {}
    for layer in range(shape.n_layer):
        found.setdefault(quantisation.endswith("_M") and has_more_bits(layer, shape.n_layer), []).append(layer)
    return {like[0]: like for like in found.values()}


class _Files(NamedTuple):
    """Files with a few layers of a shape, each written once."""

    shape: Shape
    quantisation: str
    folder: Path

    def of(self, layer: int, num_layers: int) -> Path:
        path = self.folder / f"{layer}-{num_layers}.gguf"
        if not path.exists():
            write_synthetic(layers_like(self.shape, layer, num_layers), path, self.quantisation)
        return path


class _Times:
    """Seconds per prompt token of a few layers, each measured once."""

    def __init__(
        self, files: _Files, num_prompt: int, num_times: int, on_progress: Callable[[float], object] | None
    ) -> None:
        self._files, self._num_prompt, self._num_times = files, num_prompt, num_times
        self._on_progress = on_progress
        self._known: dict[tuple[int, int, _Layout], float] = {}

    def of(self, layer: int, num_layers: int, layout: _Layout) -> float:
        key = layer, num_layers, layout
        if key not in self._known:
            self._known[key] = self._best(self._files.of(layer, num_layers), layout)
            if self._on_progress:
                self._on_progress(len(self._known) / self._num_times)
        return self._known[key]

    def _best(self, path: Path, layout: _Layout) -> float:
        """Return the time of the best repetition; the warm-up repetition is among them."""
        spec = PoolSpec(n_ctx=self._num_prompt, threads=threads_for(layout.instances), **layout._asdict())
        with open_engine(str(path), spec) as engine:
            load = LoadGenerator(engine, Workload(num_prompt=self._num_prompt, num_generated=0))
            found = load.run(0, _NUM_REPETITIONS, _LEAST_S, Deadline(_TIMEOUT_S))
        return min(1 / metrics_of([repetition], Objective())["prefill_per_s"] for repetition in found)

"""Whose turn it is on this machine: what is measured has it alone, and what nobody waits for comes last."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.workbench.workbench import Workbench


class Turns:
    """What the parts of a workbench ask before they take the machine.

    Each `before_…` says in words what is in the way, empty for nothing; what reads in the background makes way.
    """

    def __init__(self, workbench: "Workbench") -> None:
        self._workbench = workbench

    def is_measuring(self) -> bool:
        """True while the machine belongs to a measurement."""
        bench = self._workbench
        return any(slot.running is not None for slot in (bench.bench, bench.load_order, bench.backends))

    def before_benchmark(self) -> str:
        """What no benchmark measures beside."""
        bench = self._workbench
        bench.meaning.make_way()
        return (
            bench.files.doing
            or bench.embedding.doing
            or bench.importing.doing
            or bench.load_order.doing
            or bench.backends.doing
        )

    def before_load_order(self) -> str:
        """As before a benchmark, where no benchmark may run either."""
        self._workbench.meaning.make_way()
        return self._workbench.backends.doing or self._doing_anything()

    def before_backends(self) -> str:
        """As before the load order, and nobody may be waiting for the model."""
        self._workbench.meaning.make_way()
        return self._workbench.load_order.doing or self.going_on()

    def going_on(self) -> str:
        """What somebody waits for, so that nothing in the background should slow it down; empty for nothing."""
        model = self._workbench.model
        is_asked = model.is_loading or (model.pool is not None and model.pool.num_open > 0)
        return "The model" if is_asked else self._doing_anything()

    def _doing_anything(self) -> str:
        """What takes time of this machine, in words; empty where nothing does."""
        bench = self._workbench
        if bench.bench.running is not None:
            return "A benchmark"
        if bench.compare.running is not None:
            return "A comparison"
        return bench.files.doing or bench.embedding.doing or bench.importing.doing or bench.bench.background.doing

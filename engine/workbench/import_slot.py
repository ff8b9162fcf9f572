"""Imports of files into the history, one at a time, beside whatever else runs."""

from engine.history import History
from engine.tasks import Task, TaskRunner
from engine.workbench.importer import Importer, Taken
from engine.workbench.machine_lease import MachineLease


class ImportSlot(TaskRunner[Task[Taken]]):
    """Takes files in, each as a task that gives what is kept then."""

    def __init__(self, importer: Importer, machine: MachineLease) -> None:
        super().__init__()
        self._importer, self._machine = importer, machine

    def take_in(self, history: History, name: str, data: bytes) -> None:
        """Begin to keep what a file holds, as `Importer.take_in` does; its failure is the task's `error`.

        Raises ConfigError while another is taken in, and while something is measured.
        """
        task = Task(f"Importing {name}", lambda task: self._importer.take_in(history, name, data, task.update))
        self.start(task, lambda: self._machine.acquire(task.name, "shared"))

"""Imports of files into the history, one at a time, beside whatever else runs."""

from engine.history import History
from engine.tasks import Task, TaskRunner
from engine.workbench import import_door
from engine.workbench.import_door import Taken
from engine.workbench.machine_lease import MachineLease


class ImportSlot(TaskRunner[Task[Taken]]):
    """Takes files in, each as a task that gives what is kept then."""

    def __init__(self, machine: MachineLease) -> None:
        super().__init__()
        self._machine = machine

    def take_in(self, history: History, name: str, data: bytes) -> None:
        """Begin to keep what a file holds, as `import_door.take_in` does; its failure is the task's `error`.

        Raises ConfigError while another is taken in, and while something is measured.
        """
        task = Task(f"Importing {name}", lambda task: import_door.take_in(history, name, data, task.update))
        self.start(task, lambda: self._machine.acquire(task.name, "shared"))

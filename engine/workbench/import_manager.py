"""Import manager: imports files into the history in the background, one at a time."""

from engine.exchange.importer import Importer, Taken
from engine.history import History
from engine.tasks import Task, TaskRunner
from engine.workbench.machine_lease import MachineLease


class ImportManager(TaskRunner[Task[Taken]]):
    """Runner of imports, each a task whose result lists what was stored."""

    def __init__(self, importer: Importer, machine: MachineLease) -> None:
        super().__init__()
        self._importer, self._machine = importer, machine

    def take_in(self, history: History, name: str, data: bytes) -> None:
        """Start the import of a file, see `Importer.take_in`; a failure is the task's `error`.

        Raises ConfigError while another import or a measurement is running.
        """
        task = Task(f"Importing {name}", lambda task: self._importer.take_in(history, name, data, task.update))
        self.start(task, lambda: self._machine.acquire(task.name, "shared"))

"""Files on their way into the history, one at a time, beside whatever else runs."""

from engine.history import History
from engine.workbench import import_door
from engine.workbench.background import Background, Tell
from engine.workbench.import_door import Taken


class ImportSlot(Background):
    """Takes files in; `taken` is what the last of them gave, None where it failed or was stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: Taken | None = None

    def take_in(self, history: History, name: str, data: bytes) -> None:
        """Begin to keep what a file holds, as `import_door.take_in` does; its failure is `error`, later.

        Raises ConfigError while another is taken in.
        """

        def work(tell: Tell) -> None:
            self.taken = None
            self.taken = import_door.take_in(history, name, data, tell)

        self.start(f"Importing {name}", work)

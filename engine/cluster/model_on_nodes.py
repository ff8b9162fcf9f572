"""A model on the nodes that run it: its path on each, which gets the files first where it lacks them."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from engine.cluster.file_sending import send_model
from engine.cluster.model_files import ModelOffer, Tell, model_offer
from engine.cluster.remote_node import RemoteNode
from engine.errors import EngineError
from engine.models.gguf import ModelFile
from engine.tasks import Stopped

_AT_ONCE = 8
"""Nodes that are sent files at the same time."""


class ModelOnNodes:
    """One model of this machine, and its path on each node. All methods may be called from any thread."""

    def __init__(self, model: ModelFile) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._offer: ModelOffer | None = None
        self._paths: dict[str, str] = {}

    def send(self, nodes: Sequence[RemoteNode], tell: Callable[[float], object]) -> None:
        """Have all nodes get what they lack. `tell` is called with the share done, 0 to 1; what it raises ends it.

        Raises the first error of `path_on`; the transfers to the other nodes end too, and go on from there next time.
        A node that is lost meanwhile is no error.
        """
        self._offered(lambda _share, _doing: tell(0.0))
        shares = dict.fromkeys((node.id for node in nodes), 0.0)
        errors: list[BaseException] = []

        def send_one(node: RemoteNode) -> None:
            def told(share: float, _doing: str) -> None:
                if errors:
                    raise Stopped("another transfer failed")
                shares[node.id] = share
                tell(sum(shares.values()) / len(shares))

            try:
                self.path_on(node, told)
                told(1.0, "")
            except BaseException as error:  # also what `tell` raises
                if not (node.is_lost and isinstance(error, EngineError)):
                    errors.append(error)

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(send_one, nodes))
        if errors:
            raise errors[0].bare() if isinstance(errors[0], EngineError) else errors[0]

    def path_on(self, node: RemoteNode, tell: Tell = lambda _share, _doing: None) -> str:
        """Return the path of the model on a node, after sending what it lacks.

        Raises ModelError where the node cannot have it, WorkerDied where it is lost, and what `tell` raises.
        """
        known = self._paths.get(node.id)
        if known is None:
            known = self._paths[node.id] = send_model(self._offered(tell), node, tell)
        return known

    def forget(self, node: RemoteNode) -> None:
        """Have the node look for the model again, as its files may have gone."""
        self._paths.pop(node.id, None)

    def _offered(self, tell: Tell) -> ModelOffer:
        """Return the offer, for which the files are read once."""
        with self._lock:
            self._offer = self._offer or model_offer(self._model, tell)
            return self._offer

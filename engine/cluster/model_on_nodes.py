"""A model on the nodes that run it: its path on each, which gets the files first where it lacks them."""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from engine.cluster.file_sending import send_model
from engine.cluster.model_files import ModelOffer, Tell, model_offer
from engine.cluster.remote_node import RemoteNode
from engine.errors import EngineError
from engine.models.gguf import ModelFile
from engine.tasks import LEAST_SHARE, Progress, Stopped, TimeLeft

_AT_ONCE = 8
"""Nodes that are sent files at the same time."""


class ModelOnNodes:
    """One model of this machine, and its path on each node. All methods may be called from any thread."""

    def __init__(self, model: ModelFile) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._offer: ModelOffer | None = None
        self._paths: dict[str, str] = {}

    def send(self, nodes: Sequence[RemoteNode], tell: Tell) -> None:
        """Have all nodes get what they lack. `tell` reports the node that lacks the most, with the time left of all,
        by one thread at a time.

        Raises the first error of `path_on`; the transfers to the other nodes end too, and go on from there next time.
        A node that is lost meanwhile is no error.
        """
        self._offered(lambda _share, doing: tell(0.0, doing))
        shares = dict.fromkeys((node.id for node in nodes), 0.0)
        pace, began = TimeLeft(), time.monotonic()
        doings = dict.fromkeys(shares, "")
        errors: list[BaseException] = []
        telling = threading.Lock()

        def send_one(node: RemoteNode) -> None:
            def report(share: float, doing: str) -> None:
                if errors:
                    raise Stopped("another transfer failed")
                with telling:  # so that no thread tells an earlier share after a later one
                    shares[node.id], doings[node.id] = share, doing
                    tell(*_progress(shares, doings, pace, time.monotonic() - began))

            try:
                self.path_on(node, report)
                report(1.0, "")
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


def _progress(
    shares: Mapping[str, float], doings: Mapping[str, str], pace: TimeLeft, elapsed_s: float
) -> tuple[float, str]:
    """Return the share done by all nodes, and what the one that lacks the most does, with the time left of all.

    pace: reports of the time left so far, of one transfer to these nodes, in seconds since its beginning.
    """
    share, last = sum(shares.values()) / len(shares), min(shares, key=shares.__getitem__)
    pace.report(elapsed_s * (1 - share) / share if share >= LEAST_SHARE else None, elapsed_s)
    left = Progress(left_s=pace.at(elapsed_s), is_least=pace.is_least).left if shares[last] < 1 else ""
    return share, " · ".join(part for part in (doings[last], left) if part)

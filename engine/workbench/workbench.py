"""Workbench: the object behind the pages, with the loaded model, running trials and the history."""

import atexit
import logging
import threading
from pathlib import Path

from engine.cluster.specs import ClusterSpec
from engine.errors import HistoryError
from engine.exchange.importer import Importer, remove_leftovers
from engine.history import History
from engine.models.library import embedded_model
from engine.models.tokenizer import Tokenizer
from engine.opening import open_engine
from engine.protocol import Engine, NodeInfo, OpenEngine, SpreadEngine
from engine.settings import Settings
from engine.shutdown import close_all
from engine.specs import PoolSpec
from engine.vocabulary import Vocabulary
from engine.workbench.backend_manager import BackendManager
from engine.workbench.beam_manager import BeamManager
from engine.workbench.bench_manager import BenchManager
from engine.workbench.branching import Branching
from engine.workbench.cluster_manager import ClusterManager
from engine.workbench.comparison_manager import ComparisonManager
from engine.workbench.conversations import Conversations
from engine.workbench.embedding_manager import EmbeddingManager
from engine.workbench.history_manager import HistoryManager
from engine.workbench.import_manager import ImportManager
from engine.workbench.load_order_manager import LoadOrderManager
from engine.workbench.machine_card_manager import MachineCardManager
from engine.workbench.machine_lease import MachineLease
from engine.workbench.model_diffs import DiffManager
from engine.workbench.model_files import ModelFiles
from engine.workbench.model_manager import ModelManager, ModelState
from engine.workbench.nodes_bench_manager import NodesBenchManager
from engine.workbench.plain_prompts import PlainPrompts
from engine.workbench.probable_manager import ProbableManager
from engine.workbench.replays import ReplayManager
from engine.workbench.semantic_index import SemanticIndex
from engine.workbench.tokenizer_manager import TokenizerManager
from engine.workbench.trial_manager import TrialManager
from engine.workbench.word_watching import WordWatcher

log = logging.getLogger(__name__)

PARTS_CLOSE_S, HISTORY_CLOSES_S = 2.0, 1.5


class Workbench:
    """Owner of the loaded model, running trials and history. Any thread may call it; `close` ends all that it started.

    `history_error` has the reason where nothing can be stored. `open_engine` loads the model of the model bar.
    """

    def __init__(self, settings: Settings, open_engine: OpenEngine = open_engine) -> None:
        self.settings = settings
        self.importer = Importer(settings.home)
        self.kept = HistoryManager(settings, on_opened=lambda: self.meaning.wake(), stage=self.importer.stage_kept)
        if self.kept.history is not None:
            remove_leftovers(settings.home)
        self._closing = threading.Lock()
        self._is_closed = False
        self.machine = MachineLease()
        self.model_manager = ModelManager(self.machine, open_engine)
        self.clusters = ClusterManager()
        self.files = ModelFiles(settings, self.machine)
        self.load_order = LoadOrderManager(self.model_manager, self.machine)
        self.tokenizer = TokenizerManager(self.machine)
        self.nodes_bench = NodesBenchManager(self.kept, self.machine)
        self.bench = BenchManager(
            settings, self.model_manager, self.kept, self.machine, self.importer, self.nodes_bench.unsaved
        )
        self.cards = MachineCardManager(settings, self.model_manager, self.bench, self.machine)
        self.importing = ImportManager(self.importer, self.machine)
        self.embedding = EmbeddingManager(self.machine)
        self.backends = BackendManager(self.machine, self.embedding.release)
        self.meaning = SemanticIndex(lambda: self.history, self.embedding, self.machine)
        self.trials = TrialManager(self.model_manager, self.kept, self.meaning, self.machine)
        self.branching = Branching(self.trials, self.kept)
        self.plain_prompts = PlainPrompts(self.trials)
        self.conversations = Conversations(self.trials, self.kept)
        self.probable = ProbableManager(self.trials, self.machine)
        self.beams = BeamManager(self.model_manager, self.trials, self.machine)
        self.words = WordWatcher(self.trials, self.machine)
        self.replays = ReplayManager(self.model_manager, self.machine, open_engine)
        self.diffs = DiffManager(settings, self.machine)
        self.compare = ComparisonManager(
            settings, self.model_manager, self.kept,
            submit=self.trials.submit, watch=self.trials.watch, machine=self.machine,
        )  # fmt: skip

    @property
    def history(self) -> History | None:
        """History; None where it cannot be opened."""
        return self.kept.history

    @property
    def history_error(self) -> HistoryError | None:
        """Reason why nothing can be stored at present, or None."""
        return self.kept.error

    @property
    def model(self) -> ModelState:
        """Snapshot of the loaded or loading model."""
        return self.model_manager.state

    @property
    def cluster(self) -> tuple[str, list[NodeInfo]]:
        """Address and usable nodes of the cluster that is connected, else of the one that the loaded model runs on;
        without either, an empty address."""
        if address := self.clusters.address:
            return address, self.clusters.nodes
        state = self.model
        if state.cluster is None or not isinstance(state.engine, SpreadEngine):
            return "", []
        return state.cluster.address, [node for node in state.engine.nodes() if not node.reason]

    def tokenizer_of(self, path: Path | None = None) -> Engine | Tokenizer:
        """Return what tokenises for a model file: the engine where it has that file loaded, else the file's tokenizer.

        path None: the loaded model. Raises EngineError where none is loaded, and as `TokenizerManager.of`.
        """
        state = self.model
        if path is None or state.has_loaded(path):
            return state.loaded()[0]
        return self.tokenizer.of(path)

    def vocabulary_of(self, path: Path | None = None) -> Vocabulary:
        """Return the vocabulary of a model file, None for the loaded model. Raises EngineError as `tokenizer_of`."""
        state = self.model
        if path is None or state.has_loaded(path):
            return state.loaded()[0].vocabulary
        return self.tokenizer.vocabulary_of(path)

    def load(self, path: Path, spec: PoolSpec | None = None, cluster: ClusterSpec | None = None) -> None:
        """Load a model as `ModelManager.load` does. The engine has a connection of its own to the cluster: the one by
        which nodes were chosen is given up."""
        self.model_manager.load(path, spec, cluster)
        if cluster is not None:
            self.clusters.disconnect()

    def load_default(self) -> None:
        """Load the model of the settings, else the shipped one, in the background."""
        self.model_manager.load(self.settings.model or embedded_model())

    def close(self) -> None:
        """End all workers, write queued records and close the history, within seconds. Safe to call twice.

        Parts that take longer are left to the end of the process: child processes end with it, and no acknowledged row
        is lost.
        """
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self.machine.close()
            parts = (
                self.importing, self.importer, self.files, self.load_order, self.backends, self.cards, self.bench,
                self.nodes_bench, self.compare, self.probable, self.beams, self.replays, self.diffs, self.trials,
                self.tokenizer, self.meaning, self.embedding, self.clusters, self.model_manager,
            )  # fmt: skip
            late = close_all([part.close for part in parts], PARTS_CLOSE_S)
            if late:
                log.warning("Still running after %g s, no longer waited for: %s", PARTS_CLOSE_S, ", ".join(late))
            self.kept.close(HISTORY_CLOSES_S)


_opening = threading.Lock()
_opened: list[Workbench] = []


def current() -> Workbench:
    """Return the workbench of this process; the first call creates it and starts loading its model. Closed at exit."""
    with _opening:
        if not _opened:
            bench = Workbench(Settings.from_environment())
            atexit.register(bench.close)
            bench.load_default()
            _opened.append(bench)
        return _opened[0]

"""Engine: runs GGUF language models in a pool of worker processes, with the exact probability of every token.

Example:

    from engine import Pool, Sampling

    with Pool("model.gguf", parallel=16) as pool:
        for step in pool.submit("Once upon a time", Sampling(seed=1), max_tokens=64, top_k=10):
            print(step.text, step.logprob, step.rank)
"""

from engine.calls import beam_search, complete, complete_file, connect, embed
from engine.cluster.specs import ClusterSpec
from engine.comparing.beams import Beams, BeamSequence, BeamSpec
from engine.embedding.pool import EmbeddingPool
from engine.embedding.specs import EmbedSpec
from engine.errors import (
    ConfigError,
    EngineError,
    HistoryError,
    HistoryLocked,
    HistoryNewer,
    JobTimeout,
    MemoryRefused,
    ModelError,
    PoolClosed,
    PromptTooLong,
    QueueFull,
    ServerFailed,
    WorkerDied,
)
from engine.exchange.answering import FileSummary
from engine.jobs import Job
from engine.map_progress import MapProgress
from engine.pool.pool import Pool
from engine.protocol import NodeInfo, WorkerInfo
from engine.results import Completion, Timings
from engine.specs import Origin, PoolSpec, Request, Sampling
from engine.step_parts import Candidate
from engine.steps import StepTable, TokenStep
from engine.vocabulary import Vocabulary

__all__ = [
    "BeamSequence",
    "BeamSpec",
    "Beams",
    "Candidate",
    "ClusterSpec",
    "Completion",
    "ConfigError",
    "EmbedSpec",
    "EmbeddingPool",
    "EngineError",
    "FileSummary",
    "HistoryError",
    "HistoryLocked",
    "HistoryNewer",
    "Job",
    "JobTimeout",
    "MapProgress",
    "MemoryRefused",
    "ModelError",
    "NodeInfo",
    "Origin",
    "Pool",
    "PoolClosed",
    "PoolSpec",
    "PromptTooLong",
    "QueueFull",
    "Request",
    "Sampling",
    "ServerFailed",
    "StepTable",
    "Timings",
    "TokenStep",
    "Vocabulary",
    "WorkerDied",
    "WorkerInfo",
    "beam_search",
    "complete",
    "complete_file",
    "connect",
    "embed",
]

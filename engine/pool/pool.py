"""Worker pool: several workers with one model behind one object, with routing, a bounded queue, cancellation, recovery
and clean shutdown."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self, Unpack, overload

from engine.chat_options import ChatOptions
from engine.cluster.specs import ClusterSpec, given_cluster
from engine.errors import ConfigError, EngineError, PoolClosed
from engine.ids import checked_id, new_id
from engine.jobs import Job
from engine.llama.sandbox import Sandbox
from engine.map_progress import OnProgress
from engine.models.memory import check_fits
from engine.models.reading import read_model
from engine.models.weight_layout import with_layout
from engine.pool import messages as m
from engine.pool.attempts import Attempts
from engine.pool.in_order import BATCH, checked_prompts, completions
from engine.pool.job_queue import JobQueue
from engine.pool.long_texts import LongTexts
from engine.pool.placed import OnNodes, halves, on_nodes
from engine.pool.places import Places, here, model_path
from engine.pool.profiles import read_profile
from engine.pool.texts import Texts
from engine.pool.worker_group import WorkerGroup
from engine.pool.worker_process import WorkerProcess
from engine.protocol import Capabilities, NodeInfo, Startup, WorkerInfo
from engine.results import Completion
from engine.settings import Settings
from engine.specs import (
    MAX_PROMPT_CHARACTERS,
    Origin,
    PoolOptions,
    PoolSpec,
    Request,
    RequestOptions,
    Sampling,
    given_prompt,
)
from engine.validation import Refusing, given_spec, plain_text, refusing

_MOST_DEATHS = 3


class Pool(metaclass=Refusing):
    """One model in several worker processes; PoolSpec documents each parameter. n_ctx counts tokens of one sequence.

    cluster: address of a Ray cluster, "auto" for the one of this machine, or a ClusterSpec: the instances run on its
    nodes. `build`: a folder of llama.cpp libraries, of the version that the Python package binds, to use instead of its
    own. The constructor returns when every worker has loaded the model; meanwhile `on_progress` is called with 0 to 1,
    and `on_step` with what is done to get the nodes of a cluster ready. Before loading, `on_opening` is called with a
    function that aborts the load from any thread: the constructor then raises PoolClosed. Raises ModelError,
    MemoryRefused or ConfigError. Use it as a context manager or call close(). Any thread may call all methods.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        build: str = "",
        cluster: str | ClusterSpec = "",
        on_progress: Callable[[float], object] | None = None,
        on_opening: Callable[[Callable[[], None]], object] = lambda _abort: None,
        on_step: Callable[[str], object] = lambda _doing: None,
        **options: Unpack[PoolOptions],
    ) -> None:
        asked = PoolSpec(**options)
        asked_cluster = given_cluster(cluster) if cluster else None
        self.model = str(model_path(model))
        self.file = read_model(Path(self.model))
        self.spec = with_layout(asked, self.file, on_opening)
        settings = Settings.from_environment()
        self._nodes: OnNodes | None = None
        report = on_loading = on_progress or (lambda _share: None)
        if asked_cluster is None:
            check_fits(self.file, self.spec)
            places: Places = here(self.file, self.spec, build, settings.prefill_share)
        else:
            telling, on_loading = halves(report, on_step)
            places = self._nodes = on_nodes(
                asked_cluster, self.file, self.spec, build, settings.prefill_share, telling, on_opening
            )
            self.spec = self._nodes.spec
        self.threads = places.threads
        self._group = group = WorkerGroup(self.spec.instances, places, self, on_loading)
        self._jobs = JobQueue(lambda: group.alive, parallel=self.spec.parallel, most_waiting=settings.max_queue)
        self.ending: PoolClosed | None = None
        """Why this pool runs nothing any more: it was closed, or its workers could not be replaced."""
        self._sandbox, self._long_texts = Sandbox(), LongTexts(self.model)
        on_opening(self._group.abort)
        self._group.start_all()
        worker = self._group.alive[0]
        self.vocabulary = worker.vocabulary()
        self.n_ctx = worker.ready.n_ctx
        self.load_s = max(worker.ready.load_s for worker in self._group.alive)
        self.startup: Startup = max((worker.startup for worker in self._group.alive), key=sum)
        self.chat_template = worker.ready.chat_template
        self.is_recurrent = worker.ready.is_recurrent
        self.description = worker.ready.description
        self._texts = Texts(self._sandbox, self._long_texts, self.vocabulary, self.n_ctx, self._group.ask)

    @classmethod
    def from_profile(cls, path: str | Path, model: str | Path = "") -> Self:
        """Open a pool from a profile: JSON with "model" (a path; the argument overrides it) and "pool" (a PoolSpec).

        Raises ConfigError if the file is not a profile, and the errors that the constructor raises.
        """
        own, options = read_profile(path)
        if not (model or own):
            raise ConfigError(f"{path}: names no model: give one")
        return cls(model or own, **options)

    # jobs

    @refusing
    def submit(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        generated: int = 0,
        forced: int = 0,
        job_id: str | None = None,
        origin: Origin | None = None,
        **options: Unpack[RequestOptions],
    ) -> Job:
        """Submit a job; Request documents each parameter. job_id: a UUIDv7 to use instead of a new one.

        origin: its lane and client, which take turns.

        Raises ConfigError, QueueFull when too many jobs wait, PoolClosed. Errors in the prompt itself are raised by the
        job. A new grammar or schema is first checked, for at most two seconds, and a text of more than 20,000
        characters tokenised, for at most ten seconds.
        """
        request = Request(**options, generated=generated, forced=forced)  # type: ignore[arg-type]  # stop becomes a tuple there
        self._group.check_open()
        job = self._job(prompt, sampling, request, job_id, origin)
        self._jobs.add(job)
        return job

    def _job(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None,
        request: Request,
        job_id: str | None = None,
        origin: Origin | None = None,
    ) -> Job:
        """Create a job without queueing it; raises ConfigError."""
        sampling, origin = given_spec("sampling", sampling, Sampling), given_spec("origin", origin, Origin)
        given = given_prompt(prompt)
        job = Job(
            new_id() if job_id is None else checked_id(job_id),
            given,
            sampling,
            request,
            self.vocabulary,
            cancel=self._cancel,
            position=self._jobs.position,
            compiled=self._texts.compiled(sampling),
            origin=origin,
        )
        job.sent = self._texts.ids_if_long(given)
        return job

    @overload
    def map(
        self,
        prompts: Iterable[str | Sequence[int]],
        sampling: Sampling | None = None,
        *,
        return_exceptions: Literal[False] = False,
        progress: OnProgress = False,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Completion]: ...
    @overload
    def map(
        self,
        prompts: Iterable[str | Sequence[int]],
        sampling: Sampling | None = None,
        *,
        return_exceptions: bool,
        progress: OnProgress = False,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Completion | EngineError]: ...
    @refusing
    def map(
        self,
        prompts: Iterable[str | Sequence[int]],
        sampling: Sampling | None = None,
        *,
        return_exceptions: bool = False,
        progress: OnProgress = False,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Completion | EngineError]:
        """Yield completions in the order of the prompts; consumes prompts only as fast as the queue has room, at most
        eight for each sequence ahead of the first unfinished one. The jobs wait in the lane of batches.

        progress: show prompts done, tokens per second and time left in a line on standard error; or a function that is
        called with a MapProgress. Raises ConfigError for a single text, and the error of the first job that fails, its
        message prefixed with prompts[INDEX]; with return_exceptions that error is yielded in the job's place and the
        others go on. Jobs not yet yielded are cancelled when the iterator closes.
        """
        prompts = checked_prompts(prompts)
        request = Request(**options)  # type: ignore[arg-type]  # stop becomes a tuple there
        self._group.check_open()
        return completions(
            prompts,
            lambda prompt: self._job(prompt, sampling, request, origin=BATCH),
            self._jobs,
            is_failing=not return_exceptions,
            num_sequences=self.capabilities.num_sequences,
            progress=progress,
        )

    def _cancel(self, job: Job) -> None:
        """Cancel a job. Each job refers to this method, which keeps the pool alive."""
        self._jobs.cancel(job)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold all workers inside the block: they accept jobs but compute nothing, and continue together at its end, or
        at the end of the last of several blocks that overlap."""
        self._group.hold(1)
        try:
            yield
        finally:
            self._group.hold(-1)

    def pause(self) -> None:
        """Start no jobs until resume(); running ones go on, and submit still accepts new ones."""
        self._jobs.pause()

    def resume(self) -> None:
        """Start the jobs that pause() held back."""
        self._jobs.resume()

    @property
    def capabilities(self) -> Capabilities:
        """What the loaded model can do."""
        num_sequences = max(1, self._group.size) * self.spec.parallel
        return Capabilities(self.n_ctx, num_sequences, bool(self.chat_template), self.is_recurrent)

    @property
    def num_open(self) -> int:
        """Number of jobs that wait or run."""
        return self._jobs.num_open

    # events from the worker group

    def on_message(self, worker: WorkerProcess, message: m.ToPool) -> None:
        """Handle a message from a worker (called by the group)."""
        match message:
            case m.Decoded():
                self._jobs.on_decoded(worker, message)
            case m.Started():
                self._jobs.on_started(worker, message)
            case m.Ended():
                self._jobs.on_ended(worker, message)
                self._jobs.end_if_leaving(worker)
            case m.Answer():
                worker.answered(message)
            case m.InUse():
                worker.in_use = message
            case m.Failed():
                worker.failure = message.text

    def on_death(self, worker: WorkerProcess, index: int) -> bool:
        """Fail or retry the jobs of a dead worker; return whether it is to be replaced (called by the group)."""
        error = worker.died()
        blamed = self._jobs.blamed(worker)
        for job in self._jobs.take_back(worker):
            job.fail(worker.blamed() if job is blamed else error)
        self._jobs.dispatch()
        if worker.is_leaving:
            self._group.forget(index)
        elif not self._group.is_closed and self._jobs.num_deaths > _MOST_DEATHS:
            self._end(PoolClosed(f"{self._jobs.num_deaths} workers ended one after another; the last: {error}"))
        return not (self._group.is_closed or worker.is_leaving)

    def replace(self, attempts: Attempts) -> bool:
        """Start the replacement of a dead worker; return False to be asked again (called by the group)."""
        try:
            is_over = self._group.attempt(attempts)
        except BaseException as failure:  # includes what on_progress raises, on this delivery thread
            self._end(PoolClosed(f"a worker ended and could not be replaced: {failure}"))
            return True
        self._jobs.dispatch()
        return is_over

    # calls

    def check_sampling(self, sampling: Sampling) -> None:
        """Check the grammar or schema of a sampling as `submit` does, without a job; at most two seconds for a new one.

        Raises ConfigError, QueueFull where others keep the checking process busy, PoolClosed.
        """
        self._texts.compiled(sampling)

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of `text`, with BOS if the GGUF specifies it; `special` parses written control tokens.

        Raises ConfigError if it is not a text or has too many control tokens; WorkerDied, PoolClosed.
        """
        return self._texts.tokenize(plain_text("text", text, MAX_PROMPT_CHARACTERS), special=bool(special))

    def render_chat(
        self, messages: Sequence[dict[str, str]], options: ChatOptions | None = None
    ) -> tuple[str, list[int]]:
        """Render `messages` (role, content) with the model's own chat template; return the text and its ids.

        A message of the assistant may also have tool_calls, a JSON text. options: see ChatOptions.

        Raises ConfigError if the model has no template, if it fails or exceeds a limit, or if `messages` is no list of
        messages or empty; PromptTooLong if the text cannot fit into the context, however it is tokenised.
        """
        return self._texts.render_chat(self.chat_template, messages, options)

    def chat(
        self, messages: Sequence[dict[str, str]], sampling: Sampling | None = None, **options: Unpack[RequestOptions]
    ) -> Job:
        """Submit the model's reply to `messages` (role, content), rendered with its own chat template.

        Raises what `render_chat` and `submit` raise.
        """
        _text, ids = self.render_chat(messages)
        return self.submit(ids, sampling, **options)

    def measure(self, timeout: float | None = None) -> list[dict[str, float]]:
        """Return each worker's own totals by name; raises JobTimeout if a worker does not answer within `timeout` s.

        Seconds: decode_s inside llama_decode, prefill_s the part of it with chunks of prompts, loop_s in the whole loop
        except receiving; tokenise_s, distribution_s and sample_s outside llama_decode. CPU seconds: cpu_s of all
        threads, thread_s of the loop's thread without the measuring itself, decode_cpu_s of that thread inside
        llama_decode. Others: pid, num_decodes, num_tokens, private_bytes, and pss_bytes (NaN if not reported).
        """
        return self._group.measure(timeout)

    def workers(self) -> list[WorkerInfo]:
        """Return the state of each live worker."""
        return [worker.info(self._jobs.of(worker)) for worker in self._group.alive]

    # nodes of a cluster

    def nodes(self) -> list[NodeInfo]:
        """Return the nodes of the cluster that can be reached; an empty list for a pool on this machine."""
        counts = Counter(worker.node for worker in self._group.alive if not worker.is_leaving)
        return self._nodes.nodes(counts) if self._nodes else []

    def add_worker(self, node: str = "") -> None:
        """Start one more worker on a node of the cluster, by default where the most cores are left; returns when it is
        ready, and jobs go on meanwhile.

        Raises ConfigError for a node that cannot be used, ModelError, MemoryRefused, PoolClosed.
        """
        self._group.add(self._on_nodes().add(node))
        self._jobs.dispatch()

    def remove_worker(self, node: str) -> None:
        """Have the worker of a node with the fewest jobs end after these; it gets no more, and is not replaced.

        Raises ConfigError where the node has none, or for the last worker of the pool.
        """
        self._on_nodes()
        self._jobs.remove_from(node)

    def _on_nodes(self) -> OnNodes:
        if self._nodes is None:
            raise ConfigError("this pool runs on one machine: open it with cluster=ADDRESS to add and remove workers")
        return self._nodes

    # shutdown

    def close(self, reason: str = "the pool was closed while this job was open") -> None:
        """Shut all workers down; jobs still open fail with PoolClosed, with `reason` as its message. Safe to call
        twice."""
        self._end(PoolClosed(reason))

    def _end(self, error: PoolClosed) -> None:
        self.ending = self.ending or error
        jobs = self._jobs.close()
        self._group.close()
        self._sandbox.close()
        self._long_texts.close()
        for job in jobs:
            job.fail(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

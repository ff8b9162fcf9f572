"""Runner of batches: one process answers those of a home folder, one after the other, and continues after its end."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeVar

from msgspec.structs import replace

from engine.api.openai.batch_lines import counted_requests
from engine.api.openai.batch_output import Answer, Output
from engine.api.openai.batch_store import MOST_OPEN, BatchStore, Ending, Record
from engine.api.openai.batch_work import MEASURING, POLL_S, BatchWork
from engine.api.openai.calls import Caller, defect_error
from engine.api.openai.errors import BUSY_RETRY_S, LOADING_RETRY_S, QUEUE_RETRY_S, ApiError
from engine.api.openai.file_store import STORAGE_FULL, FileStore
from engine.api.openai.files import storage_error, stored
from engine.api.openai.responses import Batch, BatchError, BatchErrors, BatchStatus, RequestCounts
from engine.errors import EngineError, quoted
from engine.specs import Origin
from engine.workbench.workbench import Workbench

LOCK_RETRY_S, DISK_RETRY_S = 2.0, 5.0
SAVED_EVERY_S = 5.0
"""Time between two writes of how far a batch has come, for other processes to see."""
SPARE_WIDTH = 4
"""Lines that are asked beyond the number that the engine decodes at once: some are being written or read."""
EMBEDDINGS = "/v1/embeddings"
ELSEWHERE = "Another process with the same home folder runs the batches: ask it, or try again when it has ended."
ENDED_AT = {"completed": "completed_at", "failed": "failed_at", "cancelled": "cancelled_at"}

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger(__name__)


class _Refusal(NamedTuple):
    """Why this process takes no batches."""

    text: str
    code: str


class BatchRunner:
    """Runner of the batches of a home folder, oldest first; used on the event loop.

    Only one process runs them: the one that holds the lock. A batch whose model is not loaded, or for
    which the disk has no room, waits. All lines of a batch but those of embeddings are answered by one model: the one
    that was loaded when it began.
    """

    def __init__(self, bench: Workbench, caller: Caller, store: BatchStore, files: FileStore) -> None:
        self._bench, self._caller, self._store, self._files = bench, caller, store, files
        self._open: dict[str, Record] = {}
        self._disk_errors: dict[str, ApiError] = {}
        self._saving, self._saved_at = threading.Lock(), 0.0
        self._came = asyncio.Event()
        self._current: tuple[str, asyncio.Task[None]] | None = None
        self._asking: BatchWork | None = None
        self._refusal: _Refusal | None = _Refusal("The batches are being opened: ask again in a moment.", "not_ready")

    async def run(self) -> None:
        """Run batches until this task is cancelled; waits for another process that does so to end."""
        while True:
            try:
                with await asyncio.to_thread(self._store.lock):
                    await self._run_all()
            except OSError as error:
                text = ELSEWHERE if isinstance(error, BlockingIOError) else str(storage_error(error))
                refusal = _Refusal(text, "batches_elsewhere" if text == ELSEWHERE else STORAGE_FULL)
                if self._refusal != refusal:
                    _log.warning("Batches: %s", text)
                self._refusal = refusal
                await asyncio.sleep(LOCK_RETRY_S)

    async def _run_all(self) -> None:
        await asyncio.to_thread(self._files.remove_leftovers)
        found = await asyncio.to_thread(self._store.open_ones)
        self._open = {record.batch.id: record for record in found}
        self._refusal = None
        while True:
            self._came.clear()
            id = next((id for id, record in self._open.items() if self._can_go_on(record)), None)
            if id is not None:
                await self._run_one(id)
                continue
            try:
                async with asyncio.timeout(POLL_S if self._open else None):
                    await self._came.wait()
            except TimeoutError:
                pass

    async def _run_one(self, id: str) -> None:
        """Work on a batch until it is over, or its model is no longer loaded, so that another batch may run."""
        task = asyncio.create_task(self._work(id), name=id)
        self._current = id, task
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=POLL_S)
                record = self._open.get(id)
                obstacle = self._obstacle(record) if record and not record.ending else None
                if obstacle is not None and obstacle.code != MEASURING:
                    task.cancel()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._current = None
        if not task.cancelled() and (defect := task.exception()) is not None:
            _log.error("%s is tried again", id, exc_info=defect)
            await asyncio.sleep(DISK_RETRY_S)

    def _can_go_on(self, record: Record) -> bool:
        return record.ending is not None or record.batch.status == "cancelling" or self._obstacle(record) is None

    def _obstacle(self, record: Record) -> ApiError | None:
        """Return why no line of a batch can be asked now, None where one can."""
        if self._bench.machine.is_measuring:
            text = "A benchmark has the machine: the batch goes on after it."
            return ApiError(503, text, code=MEASURING, retry_s=BUSY_RETRY_S)
        if record.batch.endpoint == EMBEDDINGS:
            return None
        try:
            _, identity = self._bench.model.loaded()
        except EngineError as error:
            text = f"The batch goes on when its model is loaded. {error}"
            return ApiError(503, text, code="model_not_ready", retry_s=LOADING_RETRY_S)
        if record.model_hash not in ("", identity.hash):
            text = (
                f"The batch goes on when the model {quoted(record.batch.model)}, with which it began, is loaded again."
            )
            return ApiError(503, text, code="model_changed", retry_s=LOADING_RETRY_S)
        return None

    async def _work(self, id: str) -> None:
        if self._open[id].ending is None:
            try:
                if self._open[id].batch.status == "cancelling":
                    await self._stop_adding(id, "cancelled")
                else:
                    await self._answer(id)
                    await self._stop_adding(id, "completed")
            except ApiError as error:
                await self._stop_adding(id, "failed", error)
            except Exception as defect:
                _log.exception("%s failed", id)
                await self._stop_adding(id, "failed", defect_error(defect))
        await self._end(id)

    async def _answer(self, id: str) -> None:
        """Answer the lines of a batch. Raises ApiError where it cannot be done at all."""
        input = await stored(self._files.open, self._open[id].batch.input_file_id)
        with input.content as file:
            if self._open[id].batch.status == "validating":
                total = await stored(counted_requests, file)
                file.seek(0)
                while self._obstacle(self._open[id]) is not None:
                    await asyncio.sleep(POLL_S)
                self._begin(id, total)
                await self._insist(id, self._save, id)
            record = self._open[id]
            output = await self._insist(id, self._store.output, record)
            try:
                self._count(id, output)
                self._asking = self._work_of(record)
                await self._asking.run(file, output, self._width(), partial(self._write, id, output))
            except ExceptionGroup as group:
                first, *_ = group.exceptions
                raise first from None
            finally:
                self._asking = None
                await asyncio.to_thread(output.close)

    def _begin(self, id: str, total: int) -> None:
        """Bind a batch to the model that is loaded."""
        name = hash = ""
        if self._open[id].batch.endpoint != EMBEDDINGS:
            _, identity = self._bench.model.loaded()
            name, hash = self._caller.model_id, identity.hash
        counts = RequestCounts(total=total)
        self._change(id, model=name or None, status="in_progress", in_progress_at=_now(), request_counts=counts)
        self._open[id] = replace(self._open[id], model_hash=hash)

    def _work_of(self, record: Record) -> BatchWork:
        return BatchWork(
            self._caller,
            record.batch.endpoint,
            f"{record.batch.id} {record.client}",
            Origin(lane="batch", client=record.client),
            obstacle=lambda: self._obstacle(record),
        )

    def _width(self) -> int:
        engine = self._bench.model.engine
        return SPARE_WIDTH + (engine.capabilities.num_sequences if engine is not None else 0)

    async def _write(self, id: str, output: Output, answers: list[Answer]) -> None:
        await self._insist(id, output.append, answers)
        self._count(id, output)
        if time.monotonic() > self._saved_at + SAVED_EVERY_S:
            self._saved_at = time.monotonic()
            await self._insist(id, self._save, id)

    def _count(self, id: str, output: Output) -> None:
        counts = replace(self._open[id].batch.request_counts, completed=output.num_answered, failed=output.num_refused)
        self._change(id, request_counts=counts)

    async def _stop_adding(self, id: str, ending: Ending, error: ApiError | None = None) -> None:
        """Record how a batch ends and how many lines it has; a restart only publishes them then."""
        output = await self._insist(id, self._store.output, self._open[id])
        self._count(id, output)
        await asyncio.to_thread(output.close)
        changes: dict[str, Any] = {"status": "finalizing", "finalizing_at": _now()} if ending == "completed" else {}
        if error is not None:
            changes["errors"] = _errors(error)
        self._change(id, **changes)
        self._open[id] = replace(self._open[id], ending=ending)
        await self._insist(id, self._save, id)

    async def _end(self, id: str) -> None:
        """Make the output of a batch files, and the batch one that is over."""
        record = self._open[id]
        output_id, error_id = await self._insist(id, self._store.publish, record)
        ending = record.ending
        assert ending is not None
        status: BatchStatus = ending
        changes = {"output_file_id": output_id, "error_file_id": error_id, ENDED_AT[ending]: _now()}
        ended = replace(record, batch=replace(record.batch, status=status, **changes))
        await self._insist(id, self._save_ended, ended)

    def _change(self, id: str, **changes: Any) -> None:
        record = self._open[id]
        self._open[id] = replace(record, batch=replace(record.batch, **changes))

    def _save(self, id: str) -> None:
        """Write the latest state of a batch; for a thread. Whichever of two writes is later, has the later state."""
        with self._saving:
            if (record := self._open.get(id)) is not None:
                self._store.save(record)

    def _save_ended(self, record: Record) -> None:
        """Write the last state of a batch, which is over for everyone from then on; for a thread."""
        with self._saving:
            self._store.save(record)
            del self._open[record.batch.id]

    async def _insist(self, id: str, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Call what writes to the disk in a thread, again and again while the disk is full or cannot be written."""
        while True:
            try:
                found = await asyncio.to_thread(work, *args, **named)
            except (OSError, ApiError) as error:
                failure = storage_error(error) if isinstance(error, OSError) else error
                if failure.code != STORAGE_FULL:
                    raise
                if id not in self._disk_errors:
                    _log.warning("Batches wait: %s", failure)
                self._disk_errors[id] = failure
                await asyncio.sleep(DISK_RETRY_S)
            else:
                self._disk_errors.pop(id, None)
                return found

    async def add(self, record: Record) -> Batch:
        """Take a new batch. Raises ApiError where this process runs none, or too many are not over."""
        self._check_owner()
        if len(self._open) >= MOST_OPEN:
            text = f"{MOST_OPEN} batches are not over, as many as may be: wait for one of them, or cancel it."
            raise ApiError(429, text, type="rate_limit_error", code="rate_limit_exceeded", retry_s=BUSY_RETRY_S)
        await stored(self._files.check_count)
        await stored(self._store.save, record)
        self._open[record.batch.id] = record
        self._came.set()
        await stored(self._store.forget_old)
        return self.shown(record)

    async def cancel(self, id: str) -> Batch:
        """Stop a batch; what is answered becomes its files. Raises ApiError where it is over or about to be."""
        self._check_owner()
        record = await self._record(id)
        if id not in self._open or record.ending:
            text = f"The batch is {record.batch.status}: there is nothing left to cancel."
            raise ApiError(409, text, param="id", code="batch_over")
        if record.batch.status != "cancelling":
            self._change(id, status="cancelling", cancelling_at=_now())
            if self._current is not None and self._current[0] == id:
                self._current[1].cancel()
            self._came.set()
            record = self._open[id]
        await stored(self._save, id)  # also where an earlier call could not
        return self.shown(record)

    async def read(self, id: str) -> Batch:
        """Return a batch as it is now. Raises ApiError."""
        return self.shown(await self._record(id))

    async def _record(self, id: str) -> Record:
        if (record := self._open.get(id)) is not None:
            return record
        return await stored(self._store.read, id)

    def shown(self, record: Record) -> Batch:
        """Return a batch as it is now, with what it waits for as its errors."""
        record = self._open.get(record.batch.id, record)
        batch = record.batch
        if record.is_over or batch.id not in self._open:
            return batch
        waits_for = None if record.ending else self._obstacle(record) or self._passing(batch.id)
        error = self._disk_errors.get(batch.id) or waits_for
        return batch if error is None else replace(batch, errors=_errors(error))

    def _passing(self, id: str) -> ApiError | None:
        """Return what the lines of a batch wait for, None where they wait for nothing or none is asked."""
        is_current = self._current is not None and self._current[0] == id
        return self._asking.waits_for if self._asking is not None and is_current else None

    async def user_of(self, file_id: str) -> str | None:
        """Return a batch that reads a file, None where none does. Raises ApiError."""
        batches = list(self._open.values()) if self._refusal is None else await stored(self._store.open_ones)
        return next((one.batch.id for one in batches if one.batch.input_file_id == file_id), None)

    def _check_owner(self) -> None:
        if self._refusal is not None:
            text, code = self._refusal
            raise ApiError(503, text, type="server_error", code=code, retry_s=QUEUE_RETRY_S)


def _errors(error: ApiError) -> BatchErrors:
    return BatchErrors(data=[BatchError(code=error.code or error.type, message=str(error), param=error.param)])


def _now() -> int:
    return int(time.time())

"""Jobs: calls that go on when their client disconnects; it asks for their results, chunks or end later."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from engine.api.openai.calls import (
    Begun,
    Caller,
    defect_error,
    json_response,
    trial_headers,
    trial_url,
)
from engine.api.openai.clients import origin_of
from engine.api.openai.errors import ApiError, refusal
from engine.api.openai.generation import while_there
from engine.api.openai.requests import Endpoint, decoded
from engine.api.openai.streaming import DONE, event
from engine.api.openai.traffic import Call
from engine.errors import quoted
from engine.history import TrialLabel
from engine.ids import new_id
from engine.workbench.trial_manager import TrialManager

MOST_KEPT, MOST_KEPT_BYTES, KEPT_S = 1_000, 256 << 20, 3_600.0
"""Jobs that are over and their bytes kept in memory, and for how long: the oldest are forgotten first, never the
latest."""
TOKEN_BYTES = 300
"""Of a token with its candidates."""
MOST_WAIT_S = 60.0
PREFERENCE = "respond-async"

_log = logging.getLogger(__name__)

Status = Literal["queued", "in_progress", "completed", "failed", "cancelled"]


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /v1/jobs: the path of an endpoint, and the body that it takes."""

    endpoint: Endpoint
    body: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]


class Job:
    """One call in the background, whose request has `num_bytes`. id: of its first trial, or its own without one."""

    def __init__(self, endpoint: Endpoint, num_bytes: int, begun: Begun, call: Call) -> None:
        self.id = begun.trials[0] if begun.trials else new_id()
        self.endpoint, self.begun, self._call = endpoint, begun, call
        self.created_at, self.finished_at = time.time(), 0.0
        self.num_bytes = num_bytes
        self._ended = 0.0
        self._response: bytes | None = None
        self._error: ApiError | None = None
        self._is_cancelled = self._is_stopped = False
        self.task = asyncio.create_task(self._run(), name=f"job {self.id}")

    async def _run(self) -> None:
        try:
            self._response = await self.begun.result()
            self._is_stopped = self.begun.is_stopped
        except ApiError as error:
            self._fail(error)
        except Exception as defect:
            _log.exception("Job %s failed", self.id)
            self._fail(defect_error(defect))
        finally:
            self.finished_at, self._ended = time.time(), time.monotonic()
            self.num_bytes += len(self._response or b"") + TOKEN_BYTES * self.begun.num_tokens
            self._call.settle()  # no response comes after it, by whose end the others are settled

    @property
    def age_s(self) -> float:
        """Seconds since its end, by a clock that nobody sets."""
        return time.monotonic() - self._ended

    def _fail(self, error: ApiError) -> None:
        self._error = error
        if self._is_cancelled:
            self._call.leave()
        else:
            self._call.fail(error)

    @property
    def status(self) -> Status:
        """State of the call."""
        if not self.task.done():
            return "in_progress" if self.begun.is_started else "queued"
        if self._is_cancelled:
            return "cancelled"
        if self._response is None:
            return "failed"
        return "cancelled" if self._is_stopped else "completed"

    def cancel(self) -> None:
        """Stop it at its next decode step; what it has by then stays its response. Has no effect once it is over."""
        if not self.task.done():
            self._is_cancelled = True
            self.begun.stop()

    def as_json(self, *, is_whole: bool = True) -> dict[str, Any]:
        """Return it for JSON; is_whole: with its response."""
        error = self._error.body()["error"] if self._error else None
        response = msgspec.Raw(self._response) if is_whole and self._response is not None else None
        return {
            "id": self.id,
            "object": "job",
            "endpoint": self.endpoint,
            "status": self.status,
            "created_at": int(self.created_at),
            "finished_at": int(self.finished_at) or None,
            "trials": list(self.begun.trials),
            "error": error,
            **({"response": response} if is_whole else {}),
        }

    async def events(self, seen: list[int]) -> AsyncIterator[bytes]:
        """Yield its chunks as events, those after the first `seen` of each answer; ids count the chunks of each.

        The event loop runs after each list of them, as in `streaming.events`.
        """
        sent = [0] * self.begun.num_parts
        try:
            async for chunks in self.begun.chunks():
                events = b""
                for chunk in chunks:
                    sent[chunk.part] += 1
                    if sent[chunk.part] > seen[chunk.part]:
                        seen[chunk.part] = sent[chunk.part]
                        events += b"id: " + ".".join(map(str, seen)).encode() + b"\n" + event(chunk.content)
                if events:
                    yield events
                await asyncio.sleep(0)
        except ApiError as error:
            yield event(error.body())
        yield DONE


class JobForgotten(ApiError):
    """Job that is not known any more, whose first answer the history has as a trial."""

    def __init__(self, id: str, message: str, request: Request) -> None:
        super().__init__(410, f"{message}: {trial_url(id, request)}", param="id", code="job_forgotten")
        self._headers = trial_headers((id,), request)

    def headers(self) -> dict[str, str]:
        """Return the headers of the response, which name the trial."""
        return self._headers


class Jobs:
    """Jobs of one server, all of which its event loop runs."""

    def __init__(self, caller: Caller, trials: TrialManager) -> None:
        self._caller, self._trials = caller, trials
        self._jobs: dict[str, Job] = {}

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/jobs", self.list),
            Route("/v1/jobs", self.create, methods=["POST"]),
            Route("/v1/jobs/{id}", self.read),
            Route("/v1/jobs/{id}", self.cancel, methods=["DELETE"]),
            Route("/v1/jobs/{id}/events", self.events),
        ]

    async def create(self, request: Request) -> Response:
        """POST /v1/jobs."""
        asked = decoded(await request.body(), JobRequest)
        return await self.start(request, asked.endpoint, bytes(asked.body))

    async def start(self, request: Request, endpoint: Endpoint, body: bytes) -> Response:
        """Begin a call in the background and answer with its job. Raises ApiError where the call is refused."""
        client = request.headers.get("user-agent", "")
        job = Job(endpoint, len(body), *await self._caller.begin(endpoint, body, client, origin_of(request.scope)))
        self._jobs[job.id] = job
        self._forget()
        headers = {
            **trial_headers(job.begun.trials, request),
            "location": f"/v1/jobs/{job.id}",
            "preference-applied": PREFERENCE,
        }
        return json_response(job.as_json(), headers, 202)

    async def list(self, _request: Request) -> Response:
        """GET /v1/jobs: newest first, without the responses."""
        self._forget()
        return json_response(
            {"object": "list", "data": [job.as_json(is_whole=False) for job in reversed(self._jobs.values())]}
        )

    async def read(self, request: Request) -> Response:
        """GET /v1/jobs/{id}: at once, or at its end within the `wait` seconds of the query."""
        job = await self._job(request)
        wait_s = _seconds(request.query_params.get("wait", "0"))
        if wait_s:
            await while_there(request, asyncio.wait({job.task}, timeout=wait_s))
        return json_response(job.as_json())

    async def events(self, request: Request) -> Response:
        """GET /v1/jobs/{id}/events."""
        job = await self._job(request)
        seen = _seen(request.headers.get("last-event-id", ""), job.begun.num_parts)
        headers = {**trial_headers(job.begun.trials, request), "cache-control": "no-store"}
        return StreamingResponse(job.events(seen), headers=headers, media_type="text/event-stream")

    async def cancel(self, request: Request) -> Response:
        """DELETE /v1/jobs/{id}: answers when it has stopped, or after a second."""
        job = await self._job(request)
        job.cancel()
        await asyncio.wait({job.task}, timeout=1)
        return json_response(job.as_json())

    async def _job(self, request: Request) -> Job:
        self._forget()
        id = request.path_params["id"]
        if id not in self._jobs:
            raise await asyncio.to_thread(self._unknown, id, request)
        return self._jobs[id]

    def _unknown(self, id: str, request: Request) -> ApiError:
        """Return the error for a job that is not known. A trial does not hold its response: how many answers there
        were, which log-probabilities were asked for. Reads the history; raises HistoryError."""
        why = (
            f"jobs are forgotten {KEPT_S / 60:.0f} minutes after their end, earlier where many end, and with the server"
        )
        trial = self._trials.watch(id)
        if trial is None or trial.label != TrialLabel.API or not trial.draft.is_kept:
            return ApiError(404, f"There is no job {quoted(id)}: {why}.", param="id", code="job_not_found")
        message = f"There is no job {quoted(id)} any more: {why}. Its answer is a trial of the history"
        return JobForgotten(id, message, request)

    def _forget(self) -> None:
        """Forget the oldest jobs that are over, beyond what is kept."""
        over = [job for job in self._jobs.values() if job.task.done()]
        num, num_bytes = len(over), sum(job.num_bytes for job in over)
        for job in sorted(over, key=lambda job: -job.age_s):
            fits = num == 1 or (num <= MOST_KEPT and num_bytes <= MOST_KEPT_BYTES)
            if job.age_s < KEPT_S and fits:
                return
            num, num_bytes = num - 1, num_bytes - job.num_bytes
            del self._jobs[job.id]


def prefers_job(request: Request) -> bool:
    """Return whether a client prefers a job to waiting (RFC 7240)."""
    given = ",".join(request.headers.getlist("prefer")).split(",")
    return any(one.partition(";")[0].strip().lower() == PREFERENCE for one in given)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) or float(text) > MOST_WAIT_S:
        raise refusal(f"wait = {quoted(text)}: must be seconds from 0 to {MOST_WAIT_S:g}", "wait")
    return float(text)


def _seen(id: str, num_parts: int) -> list[int]:
    """Return how many chunks of each answer a client has, by the id of the last event that it has seen."""
    if not id:
        return [0] * num_parts
    numbers = id.split(".") if len(id) <= 20 * num_parts else []
    if len(numbers) != num_parts or not all(re.fullmatch("[0-9]{1,9}", number) for number in numbers):
        raise refusal(f"Last-Event-ID = {quoted(id)}: is not the id of an event of this job", "Last-Event-ID")
    return [int(number) for number in numbers]

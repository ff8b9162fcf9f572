"""Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}` with an HTTP status."""

import re
from typing import Any

from engine.errors import (
    ConfigError,
    EngineError,
    LimitExceeded,
    ModelError,
    PoolClosed,
    PromptTooLong,
    QueueFull,
    ServerFailed,
    WorkerDied,
    bounded,
)
from engine.workbench.machine_lease import MachineBusy

_FIELDS = frozenset({"grammar", "json_schema", "logit_bias", "messages", "prompt", "seed", "stop"})
"""Fields with which errors of the engine begin."""
QUEUE_RETRY_S, BUSY_RETRY_S, LOADING_RETRY_S = 1, 10, 2
PASSING = frozenset({"engine_unreachable", "machine_busy", "model_busy", "queue_full"})
"""Codes of errors that say nothing of the request: others use what it needs, or the external engine is away. A batch
waits for them to pass, however long that takes."""


class ApiError(Exception):
    """A request that is answered with an error. param: the field at fault; retry_s: seconds to wait, 0 for no retry."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_s: int = 0,
    ) -> None:
        super().__init__(bounded(message))
        self.status, self.type, self.param, self.code, self.retry_s = status, type, param, code, retry_s

    def body(self) -> dict[str, Any]:
        """Return the body of the response."""
        return {"error": {"message": str(self), "type": self.type, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Return the headers of the response."""
        return {"retry-after": str(self.retry_s)} if self.retry_s else {}


def refusal(message: str, param: str, code: str | None = None) -> ApiError:
    """Return the error for a field with a wrong value."""
    return ApiError(400, message, param=param, code=code)


def api_error(error: EngineError) -> ApiError:
    """Return the response for an error of the engine."""
    text = str(error)
    match error:
        case PromptTooLong():
            return ApiError(400, text, param="prompt", code="context_length_exceeded")
        case MachineBusy():
            return ApiError(503, text, type="server_error", code="machine_busy", retry_s=BUSY_RETRY_S)
        case QueueFull() | LimitExceeded(is_busy=True):
            return ApiError(429, text, type="rate_limit_error", code="queue_full", retry_s=QUEUE_RETRY_S)
        case ConfigError() | LimitExceeded():
            name = re.match(r"\w+", text)
            return ApiError(400, text, param=name[0] if name and name[0] in _FIELDS else None)
        case WorkerDied(is_blamed=True):
            return ApiError(422, text, code="request_ended_worker")
        case PoolClosed() | ModelError() | WorkerDied():
            return ApiError(503, text, type="server_error", code="model_not_ready", retry_s=LOADING_RETRY_S)
        case ServerFailed(is_away=True):
            return ApiError(503, text, type="server_error", code="engine_unreachable", retry_s=LOADING_RETRY_S)
        case ServerFailed(status=None):  # it broke off: another try may succeed
            return ApiError(503, text, type="server_error", code="engine_failed", retry_s=LOADING_RETRY_S)
        case ServerFailed():
            return ApiError(502, text, type="server_error", code="engine_failed")
        case _:
            return ApiError(500, text, type="server_error")

"""What can go wrong with a call, as one tree.

    ClientError
    ├── ApiError            the service refused or failed: status, code, message, param, retry_after_s
    │   ├── BadRequest          400, 413, 415, 422: the request cannot be done as it is
    │   ├── NotAllowed          401, 403: the key is missing, unknown, or does not allow this
    │   ├── NotFound            404: no such session, sentence or job of this tenant and user
    │   ├── Conflict            409: a name is taken, or a key of idempotency has another body
    │   ├── Busy                429, 503: not now; `retry_after_s` says when, if the service said so
    │   ├── StorageFull         507: no room is left
    │   └── ServiceFailed       any other 5xx
    ├── NoConnection        the service was not reached, or its answer was lost; see its idempotency_key
    │   └── TimedOut            the answer did not come in time
    ├── UnexpectedAnswer    what came is no answer of this service
    ├── JobFailed           a job that was waited for failed or was cancelled; `job` says more
    └── JobUnfinished       a job took longer than it was waited for; it goes on; `job` is its last state

Messages are one line. Knows no HTTP library.
"""

from __future__ import annotations

from livingkv.client.answers import Job


class ClientError(Exception):
    """Base of all errors that the client raises on purpose."""


class ApiError(ClientError):
    """The service answered with an error. param: the field that it is about; code: a word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


class BadRequest(ApiError):
    """The request cannot be done as it is."""


class NotAllowed(ApiError):
    """The key is missing, unknown, or does not allow this."""


class NotFound(ApiError):
    """There is nothing of that name or id, for this tenant and user."""


class Conflict(ApiError):
    """What is there stands against it."""


class Busy(ApiError):
    """Not now: it may be tried again."""


class StorageFull(ApiError):
    """No room is left; what was stored stands."""


class ServiceFailed(ApiError):
    """The service failed; its log says more."""


class NoConnection(ClientError):
    """The service was not reached, or its answer was lost. idempotency_key: what to repeat a call with that stores, so
    that it is done once however often it arrives; None for a call that stores nothing."""

    def __init__(self, message: str, *, idempotency_key: str | None) -> None:
        super().__init__(message)
        self.idempotency_key = idempotency_key


class TimedOut(NoConnection):
    """The answer did not come in time. What was asked for may have been done."""


class UnexpectedAnswer(ClientError):
    """What came is no answer of this service: another program listens there, or another version."""


class JobFailed(ClientError):
    """A job ended without being done."""

    def __init__(self, job: Job) -> None:
        why = f": {job.error.get('message')}" if job.error else ""
        super().__init__(f"the {job.kind} job {job.id} {'was ' if job.state == 'cancelled' else ''}{job.state}{why}")
        self.job = job


class JobUnfinished(ClientError):
    """A job was not over when the time to wait was; it goes on."""

    def __init__(self, job: Job, waited_s: float) -> None:
        super().__init__(f"the {job.kind} job {job.id} is {job.state} after {waited_s:g} s: {job.done} of {job.total}")
        self.job = job


def error_of(status: int, message: str, code: str | None, param: str | None, retry_after_s: float | None) -> ApiError:
    """The error for a status."""
    kind = _KINDS.get(status, ServiceFailed if status >= 500 else ApiError)
    return kind(status, message, code=code, param=param, retry_after_s=retry_after_s)


_KINDS: dict[int, type[ApiError]] = {
    **dict.fromkeys((400, 413, 415, 422), BadRequest),
    **dict.fromkeys((401, 403), NotAllowed),
    404: NotFound,
    409: Conflict,
    **dict.fromkeys((429, 503), Busy),
    507: StorageFull,
}

"""Errors as clients of OpenAI's API expect them: a status and an envelope with message, type, param and code.

Knows livingkv's tree of errors and HTTP; knows no route.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from livingkv.errors import (
    FingerprintMismatch,
    InputError,
    KeyMissing,
    KeyReused,
    LivingKVError,
    SessionExists,
    SessionNotFound,
    SettingError,
    StoreFull,
    StoreLocked,
    StoreNotFound,
)

RETRY_AFTER_S = 2


class ApiError(Exception):
    """What a request is answered with instead of its result. `str(error)` is one line for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def envelope(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Headers of the answer besides the usual ones."""
        named = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        return named | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


def api_error(error: LivingKVError) -> ApiError:
    """An error of the library as the client sees it."""
    if isinstance(error, (SessionNotFound, StoreNotFound)):
        return ApiError(404, "there is no such session", code="session_not_found")
    if isinstance(error, SessionExists):
        return ApiError(409, str(error), code="session_exists")
    if isinstance(error, (SettingError, FingerprintMismatch)):
        what = error.field if isinstance(error, SettingError) else "model"
        told = f"the service is set up otherwise than this store ({what}): whoever runs it has to mend that"
        return ApiError(500, told, code="service_settings")
    if isinstance(error, KeyReused):
        return key_reused()
    if isinstance(error, InputError):
        return ApiError(400, str(error), param=error.field)
    if isinstance(error, StoreFull):
        return ApiError(507, "there is no disk space left; what was stored stands", code="storage_full")
    if isinstance(error, StoreLocked):
        told = "another process writes to the store: try again when it has finished"
        return ApiError(503, told, code="store_locked", retry_after_s=RETRY_AFTER_S)
    if isinstance(error, KeyMissing):
        return ApiError(409, "the session is encrypted and its key is not at hand", code="key_missing")
    return ApiError(500, f"{type(error).__name__}: the store or the model failed; the log says more", code="internal")


def queue_full() -> ApiError:
    """Too many requests wait already."""
    return ApiError(429, "too many requests are waiting: try again", code="queue_full", retry_after_s=RETRY_AFTER_S)


def key_reused() -> ApiError:
    """The key of another request."""
    told = "this Idempotency-Key came with another body before: use a new key"
    return ApiError(409, told, code="idempotency_key_reused")


def session_busy() -> ApiError:
    """A job writes to the session, or is about to."""
    told = "a job writes to this session, or is about to: wait for it, or cancel it"
    return ApiError(409, told, code="session_busy", retry_after_s=RETRY_AFTER_S)


def not_ready(why: str) -> ApiError:
    """The service cannot take requests now."""
    return ApiError(503, why, code="not_ready", retry_after_s=RETRY_AFTER_S)


def internal() -> ApiError:
    """Something that no client caused and none is told more of."""
    return ApiError(500, "the service failed", code="internal")


def without_values(error: Exception) -> Exception:
    """An error of the same place, for a log: it names the kind and says nothing of what was worked on."""
    return Exception(type(error).__name__).with_traceback(error.__traceback__)

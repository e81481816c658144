"""What an API server, or the way to it, has answered instead of what was asked for."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["ApiError", "TooLargeError", "from_answer", "from_exception"]

PASSING = {0, 429, 500, 502, 503, 504}
RETRY_AFTER_LIMIT = 300.0
MESSAGE_LIMIT = 2000
ADMISSION = re.compile(r"^admission webhook \S+ denied the request|ValidatingAdmissionPolicy '[^']*'.* denied request")
CREDENTIALS_IN_URL = re.compile(r"//[^/@\s]+@")


class _Call(Protocol):
    """What was asked for."""

    @property
    def verb(self) -> str: ...
    @property
    def resource(self) -> object: ...
    @property
    def namespace(self) -> str | None: ...
    @property
    def name(self) -> str | None: ...


class TooLargeError(ValueError):
    """An answer, or an event of a watch, that is larger than what is read into memory."""


class ApiError(Exception):
    """A request that failed; its text is a sentence that names verb, resource and cluster.

    ``status`` is the HTTP status, or 0 when there was no (whole) answer. ``message`` is the server's own text,
    ``causes`` its ``details.causes``, ``retry_after`` the seconds that it asked to wait.
    """

    def __init__(
        self,
        text: str,
        *,
        status: int,
        reason: str = "",
        message: str = "",
        verb: str = "",
        resource: str = "",
        cluster: str = "",
        retry_after: float | None = None,
        causes: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.message = message
        self.verb = verb
        self.resource = resource
        self.cluster = cluster
        self.retry_after = retry_after
        self.causes = causes or []
        self.starting = False
        """Whether the server refuses because it may not know its own roles yet: after a start it forbids everything."""

    @property
    def passing(self) -> bool:
        """Whether the same request may well succeed a little later."""
        return (self.status in PASSING and not self.too_large) or self.starting

    @property
    def too_large(self) -> bool:
        """Whether the answer was larger than what is read into memory."""
        return self.reason == TooLargeError.__name__

    @property
    def denied(self) -> bool:
        """Whether an admission webhook or policy refuses the object itself: no lack of rights, whatever the status."""
        return ADMISSION.search(self.message) is not None

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickle needs; all but the text is keyword-only."""
        return _rebuilt, (str(self), dict(self.__dict__))


def _rebuilt(text: str, attributes: dict[str, Any]) -> ApiError:
    error = ApiError(text, status=attributes["status"])
    error.__dict__.update(attributes)
    return error


def from_answer(
    status: int, body: bytes | Mapping[str, Any], headers: Mapping[str, str], cluster: str, call: _Call
) -> ApiError:
    """Return the error for an answer of the server: a Status object, or whatever came instead."""
    answer = _status_object(body) if isinstance(body, bytes) else body
    details = answer.get("details")
    details = details if isinstance(details, Mapping) else {}
    causes = details.get("causes")
    message = str(answer.get("message") or "")[:MESSAGE_LIMIT]
    return ApiError(
        _sentence(status, message, cluster, call),
        status=status,
        reason=str(answer.get("reason") or ""),
        message=message,
        verb=call.verb,
        resource=str(call.resource or ""),
        cluster=cluster,
        retry_after=_seconds(headers.get("Retry-After"), details.get("retryAfterSeconds")),
        causes=[cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else [],
    )


def _status_object(body: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    return answer if isinstance(answer, dict) else {"message": body[:500].decode("utf-8", "replace").strip()}


def _seconds(*values: object) -> float | None:
    """Return the first number of seconds among ``values``, within bounds; HTTP dates are not used by API servers."""
    for value in values:
        try:
            seconds = float(str(value))
        except ValueError:
            continue
        if not math.isnan(seconds):
            return min(max(seconds, 0.0), RETRY_AFTER_LIMIT)
    return None


def _subject(call: _Call) -> str:
    """Return what was asked for, in words."""
    name = f" {call.name}" if call.name else ""
    where = f" in namespace {call.namespace}" if call.namespace else ""
    return f"{call.verb} {call.resource or 'the version'}{name}{where}"


def _sentence(status: int, message: str, cluster: str, call: _Call) -> str:
    detail = f": {message.rstrip('.')}." if message else "."
    if status == 401:
        return (
            f"Cluster {cluster} did not accept our credentials to {_subject(call)} (401){detail} "
            "Renew the account that the connection names; its token may have expired or been revoked."
        )
    if status == 403 and not ADMISSION.search(message):
        where = f"in namespace {call.namespace}" if call.namespace else "cluster-wide"
        return (
            f"Our account may not {_subject(call)} on cluster {cluster} (403){detail} "
            f'Grant it the verb "{call.verb}" on "{call.resource}" {where}.'
        )
    return f"Cluster {cluster} refused to {_subject(call)} ({status}){detail}"


def from_exception(error: BaseException, cluster: str, server: str, call: _Call) -> ApiError:
    """Return the error for a request that got no whole answer."""
    cause = _cause(error)
    remedy = "Check that this host reaches it (network, proxy, certificate) and that it is up."
    if isinstance(error, TooLargeError):
        remedy = "No object of Kubernetes is so large: find out with kubectl what stands there, and delete it."
    return ApiError(
        f"No answer from cluster {cluster} at {server or 'an unknown address'} to {_subject(call)}: {cause}. {remedy}",
        status=0,
        reason=type(error).__name__,
        message=cause,
        verb=call.verb,
        resource=str(call.resource or ""),
        cluster=cluster,
    )


def _cause(error: BaseException) -> str:
    """Return one line that says why, without what a URL may hold of credentials."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if type(error).__name__ == "ClientPayloadError":
        return "the answer broke off"
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    text = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    return CREDENTIALS_IN_URL.sub("//", " ".join(str(text).split()))[:300].rstrip(".")

"""Logs and counts errors that clients meet: error codes in responses, and closed connections.

Repeated errors are rate-limited. For each combination of client address, API and reason, the first five errors in a
minute are logged, and of foreign protocols the first; the others are counted, and their number is logged at the end of
the minute. The address is used without its port, so a client that reconnects repeatedly counts as one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from struct import error as StructError
from typing import TYPE_CHECKING, NamedTuple

from kbroker.api.context import RequestContext, sender
from kbroker.runtime.event_log import EventLogger
from kbroker.storage.log.log_health import is_shortage
from protocol.apis import ALL_APIS, ApiKey
from protocol.errors import ErrorCode, MalformedError

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from kbroker.runtime.audit_log import AuditLog

log = EventLogger("kbroker.server")

WINDOW_S = 60.0
# Limits per window: lines for each combination, lines in total, lines at its end about suppressed errors, combinations.
MAX_LINES_EACH = 5
MAX_LINES = 500
MAX_SUMMARY_LINES = 20
MAX_KINDS = 2000
# Part of the reason why a connection of another protocol is closed: its client repeats it without end.
FOREIGN = " on a listener with"

# Errors that are part of normal operation; clients recover from them without help.
EXPECTED_ERRORS = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
BROKER_FAILURES = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR})


def level_of(api_key: int, code: ErrorCode) -> int:
    """Return the log level of an error code. Errors of Produce are warnings: a batch may be lost."""
    if code in EXPECTED_ERRORS:
        return logging.DEBUG
    if code in BROKER_FAILURES:
        return logging.ERROR
    return logging.WARNING if api_key == ApiKey.PRODUCE else logging.INFO


def api_name(api_key: int) -> str:
    api = ALL_APIS.get(api_key)
    return str(api_key) if api is None else api.name


class ClosingReason(NamedTuple):
    """Why a request closes its connection."""

    text: str
    detail: str


_HTTP_METHODS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"CONN", b"PATC")


def foreign_protocol(length: int) -> str | None:
    """Return what a connection that begins with this length is, if not that of a Kafka client without TLS."""
    start = (length & 0xFFFFFFFF).to_bytes(4)
    return "an HTTP request" if start in _HTTP_METHODS else "a TLS handshake" if start[:2] == b"\x16\x03" else None


class ResponseTooLarge(Exception):
    """A response of more than MAX_RESPONSE_BYTES, as to a request that names a large group thousands of times."""


def closing_reason(error: Exception) -> ClosingReason | None:
    """Return why a request whose handling has raised `error` closes its connection; None for a fault of the broker."""
    if isinstance(error, MalformedError | IndexError | StructError):
        return ClosingReason("malformed request", str(error))
    if isinstance(error, ValueError):
        # Its text may quote the request.
        return ClosingReason("malformed request", type(error).__name__)
    if isinstance(error, ResponseTooLarge):
        return ClosingReason("response too large", str(error))
    if _is_shortage(error):
        return ClosingReason("out of file descriptors, disk space or memory", str(error))
    return None


def _is_shortage(error: Exception) -> bool:
    """Return whether the request may succeed when it is sent again.

    For example, no file descriptor was free to load the handler's module or a codec's library.
    """
    if isinstance(error, ImportError):
        return not isinstance(error, ModuleNotFoundError)
    return isinstance(error, OSError) and is_shortage(error)


class RepeatedError:
    """One combination of client address, API and reason: its lines in this window, and how many were suppressed.

    `level`: that of the line about the suppressed ones, at most WARNING.
    """

    __slots__ = ("level", "lines", "since_ms", "suppressed")

    def __init__(self, since_ms: int, level: int) -> None:
        self.since_ms = since_ms
        self.level = min(level, logging.WARNING)
        self.lines = 0
        self.suppressed = 0


class ErrorReporter:
    """`errors`: error codes in responses, counted by (API key, code). `closed`: closed connections, by reason.
    `suppressed`: lines that were not logged."""

    def __init__(
        self, mono_ms: Callable[[], int], call_later: Callable[[float, Callable[[], None]], TimerHandle]
    ) -> None:
        self.errors: Counter[tuple[int, int]] = Counter()
        self.closed: Counter[str] = Counter()
        self.suppressed = 0
        # Set when the broker begins to serve.
        self.audit: AuditLog | None = None
        self._mono_ms = mono_ms
        self._call_later = call_later
        self._kinds: dict[tuple[str, str, str], RepeatedError] = {}
        self._lines = 0
        self._timer: TimerHandle | None = None

    def report_error(
        self, context: RequestContext, code: int, count: int, message: str | None, subject: dict[str, object]
    ) -> None:
        """Report that a response has an error code `count` times. `subject`: log fields that describe the first one."""
        self.errors[context.api_key, code] += count
        error = ErrorCode(code)
        level = level_of(context.api_key, error)
        if not log.enabled(level):
            return
        api = api_name(context.api_key)
        if self._may_log(context.peer, api, error.name, level):
            log.event(
                level,
                "request refused",
                peer=context.peer,
                client=context.client_id,
                api=api,
                version=context.version,
                error=error.name,
                reason=message,
                count=count if count > 1 else None,
                **subject,
            )

    def report_denied(self, context: RequestContext, code: int, subject: dict[str, object]) -> None:
        if self.audit is not None:
            # Rights are those of a topic: its partitions are counted.
            subject.pop("partition", None)
            self.audit.record("denied", **sender(context), error=ErrorCode(code).name, **subject)

    def report_close(
        self, peer: str, client_id: str | None, context: RequestContext | None, reason: str, detail: dict[str, object]
    ) -> None:
        """Report that the broker closes a connection. `context`: the request that caused it, if there is one."""
        self.closed[reason] += 1
        api = str(detail.get("api", "")) if context is None else api_name(context.api_key)
        max_lines = 1 if FOREIGN in reason else MAX_LINES_EACH
        if self._may_log(peer, api, reason, logging.WARNING, max_lines):
            log.warning(
                "connection closed",
                peer=peer,
                client=client_id,
                reason=reason,
                **({} if context is None else {"api": api, "version": context.version}),
                **detail,
            )

    def report_failure(
        self, peer: str, client_id: str | None, context: RequestContext | None, error: Exception
    ) -> None:
        """Report an exception that no handler should raise, with its traceback."""
        api = "" if context is None else api_name(context.api_key)
        if self._may_log(peer, api, type(error).__name__, logging.ERROR):
            version = None if context is None else context.version
            log.failure("request failed", error, peer=peer, client=client_id, api=api or None, version=version)

    def _may_log(self, peer: str, api: str, reason: str, level: int, max_lines: int = MAX_LINES_EACH) -> bool:
        """Count an error, and return whether to log it: at most `max_lines` times in each window."""
        host = peer.rpartition(":")[0] or peer
        key = (host, api, reason)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= MAX_KINDS:
                # This bounds the number of keys, since the number of reasons is limited.
                key = ("*", "*", reason)
            kind = self._kinds.setdefault(key, RepeatedError(self._mono_ms(), level))
            if self._timer is None:
                self._timer = self._call_later(WINDOW_S, self._end_window)
        if kind.lines < max_lines and self._lines < MAX_LINES:
            kind.lines += 1
            self._lines += 1
            return True
        kind.suppressed += 1
        self.suppressed += 1
        return False

    def _end_window(self) -> None:
        """Log how many errors were suppressed in this window."""
        self._timer = None
        kinds, self._kinds = self._kinds, {}
        self._lines = 0
        suppressed = [item for item in kinds.items() if item[1].suppressed]
        suppressed.sort(key=lambda item: -item[1].suppressed)
        for (host, api, reason), kind in suppressed[:MAX_SUMMARY_LINES]:
            log.event(
                kind.level, "errors not logged", peer=host, api=api or None, reason=reason, count=kind.suppressed,
                seconds=round((self._mono_ms() - kind.since_ms) / 1000),
            )  # fmt: skip
        others = [kind for _, kind in suppressed[MAX_SUMMARY_LINES:]]
        if others:
            level, total = max(kind.level for kind in others), sum(kind.suppressed for kind in others)
            log.event(level, "errors not logged", peer="others", count=total, seconds=round(WINDOW_S))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._end_window()

"""What clients are refused: told in the log with who asked for what and why, counted, and kept from flooding it.

Of one client address, API and reason the first few in a minute are told, the rest are counted and told as a number
when the minute is over. A client is its address without the port: one that connects anew is the same.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.api.context import RequestContext
from kbroker.runtime.event_log import EventLogger
from protocol.apis import APIS
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import TimerHandle

log = EventLogger("kbroker.server")

WINDOW_S = 60.0
# Lines of one kind in a window; lines of all kinds in it.
LINES_OF_A_KIND = 5
LINES_IN_ALL = 500
LINES_LEFT_OUT = 20
MAX_KINDS = 2000

# What clients meet in the course of a day and get over by themselves.
EVERYDAY = frozenset(
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
_OURS = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR})
_PRODUCE = 0


def level_of(api_key: int, code: ErrorCode) -> int:
    """Everyday codes at debug, our own failures as errors, lost batches as warnings, all else is information."""
    if code in EVERYDAY:
        return logging.DEBUG
    if code in _OURS:
        return logging.ERROR
    return logging.WARNING if api_key == _PRODUCE else logging.INFO


def api_name(api_key: int) -> str:
    api = APIS.get(api_key)
    return str(api_key) if api is None else api.name


class RepeatedError:
    """One client address, API and reason: how many lines it has had in this window, how many were left out."""

    __slots__ = ("lines", "since_ms", "suppressed")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.lines = 0
        self.suppressed = 0


class ErrorReporter:
    """Of one broker. `errors` counts refused requests' error codes by (API key, code), `closed` closed connections by
    reason, `suppressed` the lines that were left out."""

    def __init__(self, mono_ms: Callable[[], int], later: Callable[[float, Callable[[], None]], TimerHandle]) -> None:
        self.errors: Counter[tuple[int, int]] = Counter()
        self.closed: Counter[str] = Counter()
        self.suppressed = 0
        self._mono_ms = mono_ms
        self._later = later
        self._kinds: dict[tuple[str, str, str], RepeatedError] = {}
        self._lines = 0
        self._timer: TimerHandle | None = None

    def request(
        self, context: RequestContext, code: int, count: int, reason: str | None, subject: dict[str, object]
    ) -> None:
        """A request was answered with an error code, for `count` of the things that it asked for; `subject` is the
        first of them (topic, partition, group, ...)."""
        self.errors[context.api_key, code] += count
        error = ErrorCode(code)
        level = level_of(context.api_key, error)
        if not log.enabled(level):
            return
        api = api_name(context.api_key)
        if self._tell(context.peer, api, error.name):
            log.event(
                level,
                "request refused",
                peer=context.peer,
                client=context.client_id,
                api=api,
                version=context.version,
                error=error.name,
                reason=reason,
                count=count if count > 1 else None,
                **subject,
            )

    def connection(
        self, peer: str, client_id: str | None, context: RequestContext | None, reason: str, detail: dict[str, object]
    ) -> None:
        """A connection is closed for a reason of the broker's. `context` is the request that is to blame, if any."""
        self.closed[reason] += 1
        api = str(detail.get("api", "")) if context is None else api_name(context.api_key)
        if self._tell(peer, api, reason):
            log.warning(
                "connection closed",
                peer=peer,
                client=client_id,
                reason=reason,
                **({} if context is None else {"api": api, "version": context.version}),
                **detail,
            )

    def failed(self, peer: str, client_id: str | None, context: RequestContext | None, error: Exception) -> None:
        """A request met a mistake of ours."""
        api = "" if context is None else api_name(context.api_key)
        if self._tell(peer, api, type(error).__name__):
            version = None if context is None else context.version
            log.failure("request failed", error, peer=peer, client=client_id, api=api or None, version=version)

    def _tell(self, peer: str, api: str, reason: str) -> bool:
        """Whether this one gets a line."""
        host = peer.rpartition(":")[0] or peer
        key = (host, api, reason)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= MAX_KINDS:
                # There are only so many reasons.
                key = ("*", "*", reason)
            kind = self._kinds.setdefault(key, RepeatedError(self._mono_ms()))
            if self._timer is None:
                self._timer = self._later(WINDOW_S, self._window_over)
        if kind.lines < LINES_OF_A_KIND and self._lines < LINES_IN_ALL:
            kind.lines += 1
            self._lines += 1
            return True
        kind.suppressed += 1
        self.suppressed += 1
        return False

    def _window_over(self) -> None:
        """Tell what was left out, and begin anew."""
        self._timer = None
        kinds, self._kinds = self._kinds, {}
        self._lines = 0
        total = sum(kind.suppressed for kind in kinds.values())
        told = sorted(kinds.items(), key=lambda item: -item[1].suppressed)[:LINES_LEFT_OUT]
        for (host, api, reason), kind in told:
            if kind.suppressed:
                total -= kind.suppressed
                log.warning(
                    "refusals not told", peer=host, api=api or None, reason=reason, count=kind.suppressed,
                    seconds=round((self._mono_ms() - kind.since_ms) / 1000),
                )  # fmt: skip
        if total:
            log.warning("refusals not told", peer="others", count=total, seconds=round(WINDOW_S))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._window_over()

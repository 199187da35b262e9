"""The broker's side of the history process: calls, their time limit, the start and the end of the process.

The process starts with the first call and is stopped after some minutes without calls. After its end, for whatever
reason, the calls in flight fail, and so do others until a pause is over.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from kbroker.replica.history.frames import Frame, FrameAssembler, encode_frame
from kbroker.runtime.event_log import EventLogger

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle

    from kbroker.runtime.environment import Environment, Service

log = EventLogger("kbroker.history")

MODULE = "kbroker.archive.history"
# The most calls that the process works on. Others wait in the order in which they were made.
MAX_IN_FLIGHT = 8
# A call fails after this time, whether it waited or was in flight.
TIMEOUT_S = 15.0
# A process is killed when so many calls in a row had no response in time.
MAX_TIMEOUTS = 2 * MAX_IN_FLIGHT
IDLE_S = 300.0
# The pause before a process is started again doubles with each end until a call succeeds.
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0

# The kinds of failures of calls: there is no archive, topic, partition or record; the archive is damaged; it is
# another topic's, or may not be used; it cannot be read now.
ABSENT, DAMAGED, REFUSED, UNAVAILABLE = "absent", "damaged", "refused", "unavailable"
KINDS = frozenset({ABSENT, DAMAGED, REFUSED, UNAVAILABLE})


class HistoryCallError(Exception):
    """The history of a topic cannot be read. `kind` is one of KINDS, `text` one sentence."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class HistoryClient:
    """Calls the history process. `starts` counts its processes, `failures` the calls that failed, by kind."""

    def __init__(self, environment: Environment) -> None:
        self.starts = 0
        self.failures = dict.fromkeys(sorted(KINDS), 0)
        self._environment = environment
        self._service: Service | None = None
        self._frames = FrameAssembler()
        self._next_id = 1
        self._waiting: deque[tuple[dict[str, Any], Future[Frame]]] = deque()
        self._in_flight: dict[int, Future[Frame]] = {}
        self._timeouts = 0
        # No process is started before this moment (monotonic), because the last one has ended for this reason.
        self._start_ms, self._pause_s, self._end_reason = 0, 0.0, ""
        self._idle_timer: TimerHandle | None = None
        self._ended: Future[None] | None = None
        self._is_stopped = False

    async def call(self, name: str, **arguments: object) -> Frame:
        """Call the process, and return its response. Raises HistoryCallError."""
        if self._service is None and self._environment.clock.mono_ms() < self._start_ms:
            self.failures[UNAVAILABLE] += 1
            raise HistoryCallError(UNAVAILABLE, self._end_reason)
        future: Future[Frame] = self._environment.loop.create_future()
        timer = self._environment.loop.call_later(TIMEOUT_S, self._on_timeout, future)
        self._waiting.append(({"call": name, **arguments}, future))
        try:
            self._proceed()
            return await future
        except HistoryCallError as error:
            self.failures[error.kind] += 1
            raise
        finally:
            timer.cancel()
            # Responses to calls that are over are ignored, and others proceed.
            self._in_flight = {number: each for number, each in self._in_flight.items() if not each.done()}
            self._proceed()

    async def stop(self) -> None:
        """End the process, and fail all calls."""
        self._is_stopped = True
        self._fail_all("the broker stops")
        self._stop_idling()
        if self._service is not None:
            self._ended = self._environment.loop.create_future()
            self._service.kill()
            await self._ended

    def _proceed(self) -> None:
        """Send waiting calls, to a new process if there is none, and stop a process without calls after a time."""
        if self._is_stopped:
            self._fail_all("the broker stops")
            return
        if not self._waiting:
            if not self._in_flight and self._service is not None:
                self._stop_idling()
                self._idle_timer = self._environment.loop.call_later(IDLE_S, self._kill)
            return
        self._stop_idling()
        if self._service is None:
            self.starts += 1
            self._frames, self._timeouts = FrameAssembler(), 0
            self._service = self._environment.start_service(MODULE, self._receive, self._on_end)
        while self._waiting and len(self._in_flight) < MAX_IN_FLIGHT:
            header, future = self._waiting.popleft()
            if future.done():
                continue
            number, self._next_id = self._next_id, self._next_id + 1
            self._in_flight[number] = future
            self._service.send(encode_frame({"id": number, **header}))

    def _receive(self, data: bytes) -> None:
        try:
            frames = self._frames.feed(data)
        except ValueError as error:
            log.error("the history process has sent nonsense", reason=error)
            self._kill()
            return
        for frame in frames:
            self._timeouts, self._pause_s = 0, 0.0
            future = self._in_flight.pop(frame.header.get("id", 0), None)
            if future is None or future.done():
                continue
            text = frame.header.get("error")
            if text is None:
                future.set_result(frame)
            else:
                kind = frame.header.get("kind")
                future.set_exception(HistoryCallError(kind if kind in KINDS else UNAVAILABLE, str(text)))
        self._proceed()

    def _on_timeout(self, future: Future[Frame]) -> None:
        if future.done():
            return
        self._timeouts += any(each is future for each in self._in_flight.values())
        future.set_exception(HistoryCallError(UNAVAILABLE, f"the archive has not responded for {TIMEOUT_S:.0f} s"))
        if self._timeouts >= MAX_TIMEOUTS:
            log.error("the history process does not respond, and is killed", calls=self._timeouts)
            self._kill()

    def _kill(self) -> None:
        if self._service is not None:
            self._service.kill()

    def _on_end(self, reason: str) -> None:
        """Called when the process has ended."""
        self._service = None
        self._stop_idling()
        if self._ended is not None:
            self._ended.set_result(None)
        if not (self._in_flight or self._waiting):
            return
        log.error("the history process has ended", reason=reason)
        self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), MAX_PAUSE_S)
        self._start_ms = self._environment.clock.mono_ms() + round(1000 * self._pause_s)
        self._end_reason = f"the history process has ended: {reason}"
        self._fail_all(self._end_reason)

    def _fail_all(self, text: str) -> None:
        failed = [*self._in_flight.values(), *(future for _, future in self._waiting)]
        self._in_flight.clear()
        self._waiting.clear()
        for future in failed:
            if not future.done():
                future.set_exception(HistoryCallError(UNAVAILABLE, text))

    def _stop_idling(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

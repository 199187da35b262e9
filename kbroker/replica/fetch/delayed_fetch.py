"""Fetch requests that wait until there is enough to read."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.replica.fetch.fetch_reads import READ_COMMITTED
from kbroker.replica.fetch.fetch_session import FetchSession
from kbroker.replica.purgatory import DelayedOperation, Purgatory
from protocol.fast.fetch import FetchRequest, FetchResponse


class DelayedFetch(DelayedOperation[FetchResponse]):
    """A request that waits for `min_bytes` or its deadline, or for the disk.

    When the wait for bytes is over, `on_ready` is called; it reads the records and completes the request. The call is
    made in the next iteration of the event loop, so the appends of one iteration share a response.

    `deadline_ms`: the end of the wait (monotonic). `must_complete`: the wait is over, even if a read filter drops all
    new records. `in_turns`: the request is large. `end_request` is called when the request is abandoned.
    """

    __slots__ = (
        "_call_soon", "_end_request", "_gained_bytes", "_is_waiting", "_on_ready", "deadline_ms", "in_turns",
        "min_bytes", "must_complete", "request", "session",
    )  # fmt: skip

    def __init__(
        self,
        purgatory: Purgatory,
        session: FetchSession,
        request: FetchRequest,
        min_bytes: int,
        deadline_ms: int,
        call_soon: Callable[[Callable[[], None]], object],
        on_ready: Callable[[DelayedFetch], None],
        end_request: Callable[[FetchSession], None],
        in_turns: bool,
    ) -> None:
        super().__init__(purgatory)
        self.session = session
        self.request = request
        self._call_soon = call_soon
        self._on_ready = on_ready
        self._end_request = end_request
        self.in_turns = in_turns
        self._is_waiting = False
        self._gained_bytes = 0
        self.min_bytes = min_bytes
        self.deadline_ms = deadline_ms
        self.must_complete = False
        session.waiter = self

    @property
    def read_committed(self) -> bool:
        return self.request.isolation_level == READ_COMMITTED

    def wait_for_bytes(self, available: int) -> None:
        """Wait for more than the `available` bytes."""
        # Partitions that are not ready will notify the session anyway.
        if self.session.replica_id < 0:
            for fetched in self.session.ready:
                if fetched.target is not None:
                    fetched.target.fetchers[fetched] = None
        self._is_waiting = True
        self._gained_bytes = available
        self.watch(self.deadline_ms)

    def gained(self, size: int) -> None:
        """Called when a partition has `size` more bytes to read, or 0 for another change that must be sent."""
        self._gained_bytes += size
        if size == 0:
            self.must_complete = True
        if self._is_waiting and (size == 0 or self._gained_bytes >= self.min_bytes):
            self._is_waiting = False
            self._call_soon(self._end_wait)

    def expire(self) -> None:
        self._is_waiting = False
        self.must_complete = True
        self._end_wait()

    def _end_wait(self) -> None:
        if not self.is_done:
            self.stop_watching()
            self._on_ready(self)

    def complete(self, response: FetchResponse) -> None:
        self._leave_session()
        super().complete(response)

    def abandon(self) -> None:
        """End the request, because its connection is closed. Nothing was sent, so the session is unchanged."""
        if not self.is_done:
            super().abandon()
            self._leave_session()
            self._end_request(self.session)

    def _leave_session(self) -> None:
        if self.session.waiter is self:
            self.session.waiter = None

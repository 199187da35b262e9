"""Fetch requests of many partitions, up to 100,000: read in slices, between which other clients are served.

Meanwhile the session is busy: no other request can use it, and if it is closed, its last request removes its
partitions. Records are copied, since the buffers into which partitions are read are reused by other requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kbroker.common import Buffer, KafkaError
from kbroker.replica.fetch.delayed_fetch import DelayedFetch
from kbroker.replica.fetch.fetch_manager import reachable_min_bytes
from kbroker.replica.fetch.fetch_reads import ColdRead, ColdReadResult, FetchReads
from kbroker.replica.fetch.filtered_reads import FilteredRead
from kbroker.replica.fetch.partition_reads import (
    add_cold_results,
    partitions_to_read,
    read_cold_blocking,
    read_partitions,
)
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode
from protocol.fast.fetch import FetchRequest, FetchResponse, FetchResult, TopicKey

if TYPE_CHECKING:
    from kbroker.replica.fetch.fetch_manager import FetchManager
    from kbroker.replica.fetch.fetch_session import FetchSession
    from kbroker.runtime.delayed_response import DelayedResponse
    from kbroker.runtime.environment import Clock
    from kbroker.runtime.slices import Slices, Steps

log = EventLogger("kbroker.fetch")

# Partitions that one step handles.
PARTITIONS_AT_ONCE = 16
# The result of the wait of a request that is then read again.
_READ_AGAIN = FetchResponse(0, 0, [])
# The result of the wait of a request whose connection was closed.
_ABANDONED = FetchResponse(0, 0, [])


class WaitingContext(Protocol):
    """The request's context. `delayed` is abandoned if its connection is closed."""

    delayed: DelayedResponse[FetchResponse] | None


class LargeDelayedFetch(DelayedFetch):
    """The wait of a large request. After it the request continues in slices, even if it was abandoned."""

    __slots__ = ()

    def abandon(self) -> None:
        if not self.is_done:
            self.session.is_busy = True
            self.complete(_ABANDONED)


async def fetch_in_slices(
    manager: FetchManager, context: WaitingContext, request: FetchRequest, uses_topic_ids: bool, slices: Slices
) -> FetchResponse:
    """Handle a Fetch request of a consumer as `FetchManager.fetch` does."""
    try:
        found = manager.find_session(request, uses_topic_ids)
    except KafkaError as error:
        return FetchResponse(error.code, 0, [])
    found.is_busy = True
    session = found
    try:
        await slices.run(update_in_steps(found, request))
        session = manager.count_session(found)
        response = await LargeFetch(manager, context, request, session, slices).respond()
    except SessionTakenError as error:
        return error.response
    except Exception:
        found.is_busy = False
        found.end_request()
        raise
    if not found.id or found.is_closed:
        await slices.run(end_in_steps(found))
    found.is_busy = False
    found.end_request()
    return response


class SessionTakenError(Exception):
    """A later request of the session has ended the wait of this one, or the session was closed."""

    def __init__(self, response: FetchResponse) -> None:
        super().__init__()
        self.response = response


def update_in_steps(session: FetchSession, request: FetchRequest) -> Steps[None]:
    for key, partitions in request.topics:
        for start in range(0, len(partitions), PARTITIONS_AT_ONCE):
            session.update([(key, partitions[start : start + PARTITIONS_AT_ONCE])], [])
            yield
    for key, indexes in request.forgotten:
        for start in range(0, len(indexes), PARTITIONS_AT_ONCE):
            session.update([], [(key, indexes[start : start + PARTITIONS_AT_ONCE])])
            yield


def end_in_steps(session: FetchSession) -> Steps[None]:
    """Remove the partitions of a session that ends with a request."""
    while session.partitions:
        _, partition = session.partitions.popitem()
        partition.detach()
        session.ready.pop(partition, None)
        yield


class LargeFetch:
    """One large request. `session` is busy, except while the request waits for records."""

    def __init__(
        self,
        manager: FetchManager,
        context: WaitingContext,
        request: FetchRequest,
        session: FetchSession,
        slices: Slices,
    ) -> None:
        self._manager = manager
        self._context = context
        self._request = request
        self._session = session
        self._slices = slices
        self._clock = manager.environment.clock

    async def respond(self) -> FetchResponse:
        request, session = self._request, self._session
        max_bytes = self._manager.max_bytes_for(request)
        deadline_ms = self._clock.mono_ms() + request.max_wait_ms
        reads = await self._read(max_bytes)
        min_bytes = request.min_bytes
        if reads.size < min_bytes:
            min_bytes = reachable_min_bytes(min_bytes, max_bytes)
        while not self._is_enough(reads, min_bytes, deadline_ms):
            response = await self._wait(reads.size, min_bytes, deadline_ms)
            if response is _ABANDONED:
                return response
            if response is not _READ_AGAIN:
                raise SessionTakenError(response)
            reads = await self._read(self._manager.max_bytes_for(request))
            if not reads.is_filtered:
                break
        topics: dict[TopicKey, list[FetchResult]] = {}
        for start in range(0, len(reads.results), PARTITIONS_AT_ONCE):
            self._manager.add_results(session, topics, reads.results[start : start + PARTITIONS_AT_ONCE])
            await self._slices.step()
        return FetchResponse(0, session.id, list(topics.items()))

    def _is_enough(self, reads: FetchReads, min_bytes: int, deadline_ms: int) -> bool:
        return (
            reads.size >= min_bytes
            or reads.must_respond
            or self._clock.mono_ms() >= deadline_ms
            or not self._session.partitions
        )

    async def _wait(self, size: int, min_bytes: int, deadline_ms: int) -> FetchResponse:
        """Wait until there are more than `size` bytes to read. The session may be used by others meanwhile."""
        manager, session = self._manager, self._session
        delayed = LargeDelayedFetch(
            manager.replicas.purgatory, session, self._request, min_bytes, deadline_ms,
            manager.environment.loop.call_soon, _read_again,
        )  # fmt: skip
        delayed.wait_for_bytes(size)
        session.is_busy = False
        self._context.delayed = delayed
        try:
            return await delayed
        finally:
            self._context.delayed = None

    async def _read(self, max_bytes: int) -> FetchReads:
        reads = FetchReads()
        await self._slices.run(self._read_in_steps(reads, max_bytes))
        if reads.cold:
            cold, max_bytes = reads.cold, max_bytes - reads.size
            results: list[ColdReadResult]
            try:
                results = await self._manager.read_in_thread(_read_cold_blocking, cold, max_bytes)
            except Exception as error:
                log.failure("read failed", error, partition=cold[0].partition.tp)
                results = [KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)] * len(cold)
            await self._slices.run(self._add_cold_results(reads, results))
        return reads

    def _read_in_steps(self, reads: FetchReads, max_bytes: int) -> Steps[None]:
        manager, session = self._manager, self._session
        selected = partitions_to_read(session)
        for start in range(0, len(selected), PARTITIONS_AT_ONCE):
            count = len(reads.results)
            part = selected[start : start + PARTITIONS_AT_ONCE]
            read_partitions(session, self._request, max_bytes, manager.replicas, manager.throttle, reads, part)
            for _, result in reads.results[count:]:
                if isinstance(result.records, Buffer) and len(result.records):
                    result.records = bytes(result.records)
            yield

    def _add_cold_results(self, reads: FetchReads, results: list[ColdReadResult]) -> Steps[None]:
        missing_error = self._manager.replicas.missing_error
        for number, read in enumerate(reads.cold):
            result = results[number] if number < len(results) else (b"", None)
            if read.partition.is_closed:
                # The topic was deleted meanwhile.
                result = KafkaError(missing_error(read.fetched.key, read.fetched.index))
            add_cold_results(reads, self._session, self._request, [read], [result])
            yield


def _read_cold_blocking(
    cold_reads: list[ColdRead], max_bytes: int, clock: Clock, is_large: bool
) -> list[ColdReadResult]:
    """Read in a thread, and copy the records: the thread's next read may reuse their buffer."""
    results: list[ColdReadResult] = []
    for result in read_cold_blocking(cold_reads, max_bytes, clock, is_large):
        if isinstance(result, FilteredRead):
            results.append(result._replace(records=bytes(result.records)))
        else:
            results.append(result if isinstance(result, KafkaError) else (bytes(result[0]), result[1]))
    return results


def _read_again(delayed: DelayedFetch) -> None:
    delayed.session.is_busy = True
    delayed.complete(_READ_AGAIN)

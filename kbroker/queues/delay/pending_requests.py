"""Requests about the pending records of a partition: list them, cancel them, deliver them before they are due."""

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.config.queue_configs import levels_ms
from kbroker.queues.delay.delay_batches import (
    DELAY_HEADERS,
    DUE,
    FROM,
    TIMESTAMP,
    StoredRecord,
    added_entry,
    build_cancellation,
    build_delivery,
)
from kbroker.queues.delay.delivery import DelayedDelivery
from kbroker.queues.delay.pending_records import Pending
from kbroker.queues.delay.stored_records import StoredRecords, first_batch, read_records
from kbroker.queues.waits import wait_until_committed
from kbroker.replica.partition import Partition
from kbroker.runtime.environment import Environment
from kbroker.runtime.turns import yield_if_due
from protocol.errors import ErrorCode
from protocol.records.record import Header

# The most records that are cancelled or delivered in one iteration of the event loop.
SLICE_RECORDS = 100
# A page ends after this many bytes of keys, headers and values. One record may have more.
MAX_PAGE_BYTES = 1 << 20
_RECORD_BYTES = 100
_OWN_HEADERS = frozenset({FROM, DUE, TIMESTAMP})


class ListedRecord(NamedTuple):
    """A pending record. If the payload was not requested, `value` is None and `headers` has the delay header only.

    `moved_from`: its former offset if retention has moved it, else -1.
    """

    due_ms: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    value_size: int
    headers: tuple[Header, ...]
    moved_from: int

    @property
    def size(self) -> int:
        headers = sum([len(name) + len(value or b"") for name, value in self.headers])
        return _RECORD_BYTES + len(self.key or b"") + len(self.value or b"") + headers


class OffsetResult(NamedTuple):
    """The outcome for the record at an offset. NONE: it was pending, and is now cancelled or delivered."""

    offset: int
    error: ErrorCode
    message: str | None = None


class PendingRequests:
    """Handles a request for a partition that this broker leads. Records that are appended meanwhile may be missed."""

    def __init__(self, environment: Environment, partition: Partition, delivery: DelayedDelivery) -> None:
        self._environment = environment
        self._partition = partition
        self._delivery = delivery
        # Its own: the records that the delivery has read are due soon.
        self._stored = StoredRecords(environment, partition.log)

    async def list_page(
        self, after: Pending | None, max_records: int, *, include_payload: bool
    ) -> tuple[list[ListedRecord], bool]:
        """Return records in the order of delivery that follow `after`, and whether there are more.

        Raises KafkaError. Those of open transactions are not listed.
        """
        await self._delivery.wait_until_loaded()
        page: dict[Pending, ListedRecord] = {}
        size = 0
        while len(page) < max_records and size < MAX_PAGE_BYTES:
            wanted = min(self._stored.window, max_records - len(page))
            if page:
                # No more than fit: to read and to free the others takes long.
                wanted = min(wanted, (MAX_PAGE_BYTES - size) * len(page) // size + 1)
            entries = self._delivery.state.pending.after(after, wanted)
            if not entries:
                break
            # Each step over a whole window takes half a millisecond or more.
            await self._environment.yield_to_loop()
            await self._stored.prepare(entries)
            await self._environment.yield_to_loop()
            for entry in entries:
                record = self._stored.take(entry)
                if record is None and self._is_pending(entry):
                    # The records before it were too large.
                    break
                moved_from = -1 if record is None else self._moved_from(record, after)
                after = entry
                if record is not None:
                    # Retention may have moved a record of the page meanwhile: it is listed where it is now.
                    listed = _listed(record, include_payload, moved_from)
                    former = page.get((record.due_ms, listed.moved_from))
                    if former is not None and not self._is_pending(former[:2]):
                        del page[former[:2]]
                    page[entry] = listed
                    size += listed.size
                    if size >= MAX_PAGE_BYTES:
                        break
                yield_if_due()
        self._check_leader()
        return list(page.values()), bool(self._delivery.state.pending.after(after, 1))

    def _moved_from(self, record: StoredRecord, after: Pending | None) -> int:
        """Return the former offset of a record, -1 if it was not moved.

        If it was moved several times, the one up to `after`, at which it is listed already.
        """
        offset = record.moved_from
        while after is not None and offset >= 0 and (record.due_ms, offset) > after:
            offset = self._delivery.former_offset(offset)
        return offset if offset >= 0 else record.moved_from

    async def cancel(self, offsets: Sequence[int]) -> list[OffsetResult]:
        """Cancel pending records. Raises KafkaError."""
        return self._by_requested_offset(offsets, await self._cancel(self._moved_to(offsets)))

    async def deliver_now(self, offsets: Sequence[int]) -> list[OffsetResult]:
        """Deliver pending records, in the order in which they would be due. Raises KafkaError, MalformedError."""
        return self._by_requested_offset(offsets, await self._deliver_now(self._moved_to(offsets)))

    def _moved_to(self, offsets: Sequence[int]) -> list[int]:
        return [self._delivery.moved_to(offset) for offset in offsets]

    def _by_requested_offset(self, offsets: Sequence[int], results: list[OffsetResult]) -> list[OffsetResult]:
        """Return a result for each offset. Retention may have moved a record before the request or meanwhile."""
        found = {self._delivery.moved_to(result.offset): result for result in results}
        wanted = [(self._delivery.moved_to(offset), offset) for offset in sorted(set(offsets))]
        return [found[current]._replace(offset=offset) for current, offset in wanted if current in found]

    async def _cancel(self, offsets: Sequence[int]) -> list[OffsetResult]:
        entries, results = await self._find(offsets)
        for at in range(0, len(entries), SLICE_RECORDS):
            await self._delivery.wait_until_loaded()
            pending, gone = self._split(entries[at : at + SLICE_RECORDS])
            if pending:
                self._delivery.append(build_cancellation(pending, self._environment.clock.now_ms()), pending)
                self._delivery.metrics.cancelled += len(pending)
            results += [*_gone(gone), *_done(pending)]
            await self._environment.yield_to_loop()
        return results

    async def _deliver_now(self, offsets: Sequence[int]) -> list[OffsetResult]:
        entries, results = await self._find(offsets)
        config = self._partition.log.config
        while entries:
            entries = [self._latest(entry) for entry in entries]
            await self._stored.prepare(entries[: self._stored.window])
            await self._delivery.wait_until_loaded()
            pending, gone = self._split(entries[:SLICE_RECORDS])
            self._stored.forget(gone)
            records = first_batch(self._stored.first_ready(pending), config.segment_bytes)
            delivered = pending[: len(records)]
            if records:
                is_log_append_time = config.message_timestamp_type == "LogAppendTime"
                now_ms = self._environment.clock.now_ms()
                self._delivery.append(build_delivery(records, now_ms, log_append_time=is_log_append_time), delivered)
                self._delivery.metrics.delivered_early += len(records)
                self._stored.forget(delivered)
            results += [*_gone(gone), *_done(delivered)]
            done = {*gone, *delivered}
            entries = [entry for entry in entries if entry not in done]
            await self._environment.yield_to_loop()
        return results

    async def _find(self, offsets: Sequence[int]) -> tuple[list[Pending], list[OffsetResult]]:
        """Return the entries of the delayed records, in the order of delivery, and errors for the other offsets.

        The due times come from the stored records, since the pending records cannot be searched by offset. Afterwards
        the state covers the whole log.
        """
        entries: list[Pending] = []
        errors: list[OffsetResult] = []
        levels = levels_ms(self._partition.log.config.kbroker_delay_levels)
        await self._delivery.wait_until_loaded()
        log = self._partition.log
        wanted = sorted(set(offsets))
        present = [offset for offset in wanted if log.log_start_offset <= offset < log.log_end_offset]
        bounds = f"the log has {log.log_start_offset} to {log.log_end_offset - 1}"
        for offset in sorted(set(wanted) - set(present)):
            message = f"There is no record at offset {offset}: {bounds}."
            errors.append(OffsetResult(offset, ErrorCode.OFFSET_OUT_OF_RANGE, message))
        async for header, some, records in read_records(self._environment, log, present):
            for offset, record in zip(some, records, strict=True):
                entry = added_entry(header, record, offset, levels)
                if entry is None:
                    message = f"The record at offset {offset} is not a delayed one."
                    errors.append(OffsetResult(offset, ErrorCode.INVALID_RECORD, message))
                elif self._delivery.state.is_open(header.producer_id, entry):
                    message = f"The record at offset {offset} belongs to an open transaction."
                    errors.append(OffsetResult(offset, ErrorCode.CONCURRENT_TRANSACTIONS, message))
                else:
                    entries.append(entry)
        await self._delivery.wait_until_loaded()
        return sorted(entries), errors

    def _latest(self, entry: Pending) -> Pending:
        return entry[0], self._delivery.moved_to(entry[1])

    def _is_pending(self, entry: Pending) -> bool:
        return entry in self._delivery.state.pending and entry[1] >= self._partition.log.log_start_offset

    def _split(self, entries: Sequence[Pending]) -> tuple[list[Pending], list[Pending]]:
        """Return those that are still pending, and the others."""
        entries = [self._latest(entry) for entry in entries]
        pending = [entry for entry in entries if self._is_pending(entry)]
        still = set(pending)
        return pending, [entry for entry in entries if entry not in still]

    def _check_leader(self) -> None:
        if not self._delivery.is_leading:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def wait_until_committed(self, timeout_ms: int) -> None:
        """Wait until the whole log is committed, as acks=all does. Raises KafkaError, REQUEST_TIMED_OUT among others.

        This includes batches of earlier requests, whose clients may not have received a response.
        """
        self._check_leader()
        await wait_until_committed(self._environment.loop, self._partition, timeout_ms)
        if self._partition.state.is_under_min_isr:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


def _listed(record: StoredRecord, include_payload: bool, moved_from: int) -> ListedRecord:
    headers = tuple(
        header
        for header in record.headers
        if (header[0] not in _OWN_HEADERS if include_payload else header[0] in DELAY_HEADERS)
    )
    value_size = -1 if record.value is None else len(record.value)
    value = record.value if include_payload else None
    return ListedRecord(
        record.due_ms, record.offset, record.timestamp, record.key, value, value_size, headers, moved_from
    )


def _gone(entries: Sequence[Pending]) -> list[OffsetResult]:
    message = "The record at offset {} is not pending any more: it was delivered, cancelled, or its transaction "
    message += "was aborted."
    return [OffsetResult(offset, ErrorCode.RESOURCE_NOT_FOUND, message.format(offset)) for _, offset in entries]


def _done(entries: Sequence[Pending]) -> list[OffsetResult]:
    return [OffsetResult(offset, ErrorCode.NONE) for _, offset in entries]

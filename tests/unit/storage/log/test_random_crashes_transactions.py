"""Random operations and crashes as in test_random_crashes.py, with transactions of several producers.

After each recovery the open and the aborted transactions agree with the batches. A consumer of committed records, from
any offset and with any fetch size, reads exactly the records of committed transactions and those without a transaction.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from kbroker.storage import file_names
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import find_aborted_transactions, read_blocking
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.transaction_index import AbortedTransaction, iter_transaction_index
from kbroker.storage.producers.transactions import NO_UNSTABLE_OFFSET
from protocol.records.batch import TRANSACTIONAL, build_batch, iter_batch_records, iter_headers, parse_header
from protocol.records.control import EndTransactionMarker, build_end_marker, find_end_marker
from tests.sampling import third_of
from tests.unit.storage.log.test_random_crashes import CrashTest
from tests.unit.support.log_lab import NOW, append

PRODUCERS = 4
COMMIT, ABORT, DATA, PLAIN = "commit", "abort", "data", "plain"


class Event(NamedTuple):
    """A batch of the log with offsets [base, last]."""

    base: int
    last: int
    kind: str
    producer_id: int
    epoch: int


class Model:
    """The state of transactions after the batches of a log."""

    def __init__(self, events: list[Event]) -> None:
        self.open: dict[int, int] = {}
        # (producer id, first offset, offset of the marker)
        self.aborted: list[tuple[int, int, int]] = []
        self.visible: set[int] = set()
        self._waiting: dict[int, list[int]] = {}
        for event in events:
            offsets = list(range(event.base, event.last + 1))
            if event.kind == PLAIN:
                self.visible.update(offsets)
            elif event.kind == DATA:
                self.open.setdefault(event.producer_id, event.base)
                self._waiting.setdefault(event.producer_id, []).extend(offsets)
            else:
                self._end(event)

    def _end(self, event: Event) -> None:
        first, offsets = self.open.pop(event.producer_id, None), self._waiting.pop(event.producer_id, [])
        if event.kind == COMMIT:
            self.visible.update(offsets)
        elif first is not None:
            self.aborted.append((event.producer_id, first, event.base))


class TransactionCrashTest(CrashTest):
    def __init__(self, path: Path, seed: int) -> None:
        self.events: list[Event] = []
        # Epoch and next sequence by producer id.
        self.producers: dict[int, tuple[int, int]] = {}
        super().__init__(path, seed, compacted=False)

    def append(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            getattr(self, self.random.choice(("_data", "_data", "_data", "_marker", "_markers")))()

    def _data(self) -> None:
        random, state = self.random, self.state
        producer_id = random.randrange(PRODUCERS)
        epoch, sequence = self.producers.get(producer_id, (0, 0))
        open_here = producer_id in Model(self.events).open
        transactional = open_here or random.random() < 0.8
        count = random.randrange(1, 4)
        new = [(NOW + state.end + n, None, random.randbytes(random.choice((3, 30, 100))), ()) for n in range(count)]
        batch = build_batch(
            new,
            attributes=TRANSACTIONAL if transactional else 0,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        if len(batch) > self.log.config.segment_bytes:
            return
        assert self.log.producers.check(parse_header(batch)) is None
        kind = DATA if transactional else PLAIN
        state.written.update({state.end + n: record[1:3] for n, record in enumerate(new)})
        self._expect(Event(state.end, state.end + count - 1, kind, producer_id, epoch))
        self.producers[producer_id] = (epoch, sequence + count)
        assert append(self.log, batch) == state.end
        state.end += count

    def _expect(self, event: Event) -> None:
        self.events.append(event)
        self.state.batches[event.last] = 0

    def _new_marker(self, producer_id: int, at: int) -> tuple[bytearray, EndTransactionMarker]:
        epoch, sequence = self.producers.get(producer_id, (0, 0))
        if self.random.random() < 0.5:
            # A marker of transactions of version 2.
            epoch, sequence = epoch + 1, 0
        self.producers[producer_id] = (epoch, sequence)
        marker = EndTransactionMarker(self.random.random() < 0.4, self.random.randrange(3))
        self._expect(Event(at, at, COMMIT if marker.committed else ABORT, producer_id, epoch))
        return build_end_marker(marker, producer_id, epoch, NOW + at), marker

    def _marker(self) -> None:
        batch, _ = self._new_marker(self.random.randrange(PRODUCERS), self.state.end)
        assert append(self.log, batch) == self.state.end
        self.state.end += 1

    def _markers(self) -> None:
        producers = self.random.sample(range(PRODUCERS), self.random.randrange(1, PRODUCERS + 1))
        batches = []
        for producer_id in producers:
            batch, marker = self._new_marker(producer_id, self.state.end + len(batches))
            batches.append((batch, parse_header(batch), marker))
        assert self.log.append_batches(batches, 0, NOW) == self.state.end
        self.state.end += len(batches)

    # Checks after recovery.

    def check(self, power: bool) -> None:
        log = self.log
        end = log.log_end_offset
        self.events = [event for event in self.events if event.last < end]
        # Markers are records too.
        for event in self.events:
            if event.kind in (COMMIT, ABORT):
                self.state.written[event.base] = self._control(log, event)
        self.state.written = {offset: record for offset, record in self.state.written.items() if record is not None}
        super().check(power)
        log.update_high_watermark(end)
        self._check_transactions(Model(self.events))
        # A producer whose batches were deleted and whose snapshot was lost is unknown and may begin anywhere.
        self.producers = {event.producer_id: (event.epoch, 0) for event in self.events}
        for producer in log.producers.active():
            assert producer.producer_epoch == self.producers[producer.producer_id][0]
            self.producers[producer.producer_id] = (producer.producer_epoch, producer.last_sequence + 1)

    def _control(self, log: Log, event: Event) -> tuple[bytes | None, bytes | None] | None:
        if event.base < log.log_start_offset:
            return None
        data = bytes(read_blocking(log, event.base, 1, event.base + 1))
        marker = find_end_marker(data)
        assert marker is not None
        assert marker.committed == (event.kind == COMMIT)
        record = next(iter_batch_records(data, parse_header(data)))
        return record.key, record.value

    def _check_producer(self, end: int, power: bool) -> None:
        pass

    def _check_transactions(self, model: Model) -> None:
        log = self.log
        oldest = log.segments[0].base_offset
        actual = {
            producer.producer_id: producer.current_txn_start_offset
            for producer in log.producers.active()
            if producer.current_txn_start_offset >= 0
        }
        # Transactions that begin before the oldest segment are known only from a snapshot.
        assert {p: first for p, first in actual.items() if first >= oldest and model.open.get(p, -1) >= oldest} == {
            p: first for p, first in model.open.items() if first >= oldest
        }
        assert all(p in model.open and first >= model.open[p] for p, first in actual.items())
        first = log.producers.transactions.first_unstable_offset
        assert first == min(actual.values(), default=NO_UNSTABLE_OFFSET)
        indexed = [entry for segment in log.segments for entry in self._entries(segment)]
        known = [
            (transaction.producer_id, transaction.first_offset, transaction.last_offset) for transaction in indexed
        ]
        assert [transaction for transaction in known if transaction[1] >= oldest and transaction in model.aborted] == [
            transaction for transaction in model.aborted if transaction[1] >= oldest
        ]
        assert {transaction[2] for transaction in known} <= {transaction[2] for transaction in model.aborted}
        self._check_readers(model, min(max(first, log.log_start_offset), log.log_end_offset))

    def _entries(self, segment: LogSegment) -> list[AbortedTransaction]:
        entries: list[AbortedTransaction] = []
        segment.collect_aborted(segment.base_offset, NO_UNSTABLE_OFFSET, True, entries)
        assert len(entries) == len(segment.indexes.transaction)
        if segment.indexes.transaction.persisted:
            in_file = list(iter_transaction_index(self.disk, segment.path(file_names.TXN_INDEX)))
            assert in_file == entries[: segment.indexes.transaction.persisted]
        return entries

    def _check_readers(self, model: Model, stable: int) -> None:
        log = self.log
        for _ in range(4):
            if stable <= log.log_start_offset:
                break
            start = self.random.randrange(log.log_start_offset, stable)
            offsets_read = set(read_committed(log, start, stable, self.random.choice((1, 300, 1000, 1 << 20))))
            assert offsets_read == {offset for offset in model.visible if start <= offset < stable}


def read_committed(log: Log, offset: int, stable: int, max_bytes: int) -> list[int]:
    """Return the offsets that a read_committed consumer gets; each fetch has its aborted transactions (KIP-98)."""
    offsets_read = []
    fetch_offset = offset
    while offset < stable:
        data = bytes(read_blocking(log, offset, max_bytes, stable))
        aborted_transactions = find_aborted_transactions(log, offset, len(data), True)
        assert aborted_transactions is not None
        upcoming = sorted(aborted_transactions, key=lambda transaction: transaction.first_offset)
        aborted: set[int] = set()
        for position, header in iter_headers(data):
            while upcoming and upcoming[0].first_offset <= header.last_offset:
                aborted.add(upcoming.pop(0).producer_id)
            if header.is_control:
                marker = find_end_marker(data[position : position + header.size])
                if marker is not None and not marker.committed:
                    aborted.discard(header.producer_id)
            elif not header.is_transactional or header.producer_id not in aborted:
                offsets_read.extend(range(max(header.base_offset, fetch_offset), header.last_offset + 1))
            offset = header.next_offset
    return offsets_read


@pytest.mark.parametrize("seed", third_of(range(40)))
def test_random_transactions_and_crashes(seed: int) -> None:
    test = TransactionCrashTest(Path("/"), seed)
    for _ in range(12):
        test.crash()

"""A log's many lives, as in test_lives.py, with transactions of several producers in it.

What must hold of each next life: which transactions are open is what the batches that are left say, and so is what was
aborted; who reads committed records, from wherever and in whatever portions, sees exactly those of committed
transactions and those outside of any.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from kbroker.storage import file_names
from kbroker.storage.indexes.transaction_index import AbortedTransaction, iter_transaction_index
from kbroker.storage.log.log import Log
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.producers.ongoing_transactions import NO_UNSTABLE_OFFSET
from protocol.records.batch import TRANSACTIONAL, build_batch, iter_batch_records, iter_headers, parse_header
from protocol.records.control import EndTransactionMarker, build_end_marker, find_end_marker
from tests.unit.storage.log.test_lives import Story
from tests.unit.support.log_lab import NOW, append

PRODUCERS = 4
COMMIT, ABORT, DATA, PLAIN = "commit", "abort", "data", "plain"


class Event(NamedTuple):
    """A batch of the log, [base, last]; `kind` says what."""

    base: int
    last: int
    kind: str
    producer_id: int
    epoch: int


class Model:
    """What follows from the batches of a log, told in order."""

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


class TransactionStory(Story):
    def __init__(self, path: Path, seed: int) -> None:
        self.events: list[Event] = []
        # Epoch and next sequence by producer id.
        self.producers: dict[int, tuple[int, int]] = {}
        super().__init__(path, seed, compacted=False)

    def append(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            getattr(self, self.random.choice(("_data", "_data", "_data", "_marker", "_markers")))()

    def _data(self) -> None:
        random, life = self.random, self.life
        producer_id = random.randrange(PRODUCERS)
        epoch, sequence = self.producers.get(producer_id, (0, 0))
        open_here = producer_id in Model(self.events).open
        transactional = open_here or random.random() < 0.8
        count = random.randrange(1, 4)
        new = [(NOW + life.end + n, None, random.randbytes(random.choice((3, 30, 100))), ()) for n in range(count)]
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
        life.written.update({life.end + n: one[1:3] for n, one in enumerate(new)})
        self._expect(Event(life.end, life.end + count - 1, kind, producer_id, epoch))
        self.producers[producer_id] = (epoch, sequence + count)
        assert append(self.log, batch) == life.end
        life.end += count

    def _expect(self, event: Event) -> None:
        self.events.append(event)
        self.life.batches[event.last] = 0

    def _new_marker(self, producer_id: int, at: int) -> tuple[bytearray, EndTransactionMarker]:
        epoch, sequence = self.producers.get(producer_id, (0, 0))
        if self.random.random() < 0.5:
            # As with transactions of version 2.
            epoch, sequence = epoch + 1, 0
        self.producers[producer_id] = (epoch, sequence)
        marker = EndTransactionMarker(self.random.random() < 0.4, self.random.randrange(3))
        self._expect(Event(at, at, COMMIT if marker.committed else ABORT, producer_id, epoch))
        return build_end_marker(marker, producer_id, epoch, NOW + at), marker

    def _marker(self) -> None:
        batch, _ = self._new_marker(self.random.randrange(PRODUCERS), self.life.end)
        assert append(self.log, batch) == self.life.end
        self.life.end += 1

    def _markers(self) -> None:
        producers = self.random.sample(range(PRODUCERS), self.random.randrange(1, PRODUCERS + 1))
        batches = []
        for producer_id in producers:
            batch, marker = self._new_marker(producer_id, self.life.end + len(batches))
            batches.append((batch, parse_header(batch), marker))
        assert self.log.append_markers(batches, 0, NOW) == self.life.end
        self.life.end += len(batches)

    # What is left.

    def check(self, power: bool) -> None:
        log = self.log
        end = log.log_end_offset
        self.events = [event for event in self.events if event.last < end]
        # Markers are records, too.
        for event in self.events:
            if event.kind in (COMMIT, ABORT):
                self.life.written[event.base] = self._control(log, event)
        self.life.written = {offset: one for offset, one in self.life.written.items() if one is not None}
        super().check(power)
        log.producers.transactions.on_high_watermark_updated(end)
        self._check_transactions(Model(self.events))
        # Of a producer whose data was deleted, and the snapshot lost, nothing is known: it may begin anywhere.
        self.producers = {event.producer_id: (event.epoch, 0) for event in self.events}
        for one in log.producers.active():
            assert one.producer_epoch == self.producers[one.producer_id][0]
            self.producers[one.producer_id] = (one.producer_epoch, one.last_sequence + 1)

    def _control(self, log: Log, event: Event) -> tuple[bytes | None, bytes | None] | None:
        if event.base < log.log_start_offset:
            return None
        data = bytes(log.read_blocking(event.base, 1, event.base + 1))
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
        found = {
            one.producer_id: one.current_txn_start_offset
            for one in log.producers.active()
            if one.current_txn_start_offset >= 0
        }
        # Of what begins before the oldest segment only as much is known as a snapshot remembers.
        assert {p: first for p, first in found.items() if first >= oldest and model.open.get(p, -1) >= oldest} == {
            p: first for p, first in model.open.items() if first >= oldest
        }
        assert all(p in model.open and first >= model.open[p] for p, first in found.items())
        first = log.producers.transactions.first_unstable_offset
        assert first == min(found.values(), default=NO_UNSTABLE_OFFSET)
        indexed = [entry for segment in log.segments for entry in self._entries(segment)]
        known = [(one.producer_id, one.first_offset, one.last_offset) for one in indexed]
        assert [one for one in known if one[1] >= oldest and one in model.aborted] == [
            one for one in model.aborted if one[1] >= oldest
        ]
        assert {one[2] for one in known} <= {one[2] for one in model.aborted}
        self._check_readers(model, min(max(first, log.log_start_offset), log.log_end_offset))

    def _entries(self, segment: LogSegment) -> list[AbortedTransaction]:
        found: list[AbortedTransaction] = []
        segment.collect_aborted(segment.base_offset, NO_UNSTABLE_OFFSET, True, found)
        assert len(found) == len(segment.indexes.transaction)
        if segment.indexes.transaction.persisted:
            in_file = list(iter_transaction_index(self.disk, segment.path(file_names.TXN_INDEX)))
            assert in_file == found[: segment.indexes.transaction.persisted]
        return found

    def _check_readers(self, model: Model, stable: int) -> None:
        log = self.log
        for _ in range(4):
            if stable <= log.log_start_offset:
                break
            start = self.random.randrange(log.log_start_offset, stable)
            seen = set(read_committed(log, start, stable, self.random.choice((1, 300, 1000, 1 << 20))))
            assert seen == {offset for offset in model.visible if start <= offset < stable}


def read_committed(log: Log, offset: int, stable: int, max_bytes: int) -> list[int]:
    """The offsets of the records that a consumer keeps, told of aborted transactions with each portion (KIP-98)."""
    seen = []
    wanted = offset
    while offset < stable:
        data = bytes(log.read_blocking(offset, max_bytes, stable))
        told = log.aborted_transactions(offset, len(data), True)
        assert told is not None
        due = sorted(told, key=lambda one: one.first_offset)
        aborted: set[int] = set()
        for position, header in iter_headers(data):
            while due and due[0].first_offset <= header.last_offset:
                aborted.add(due.pop(0).producer_id)
            if header.is_control:
                marker = find_end_marker(data[position : position + header.size])
                if marker is not None and not marker.committed:
                    aborted.discard(header.producer_id)
            elif not header.is_transactional or header.producer_id not in aborted:
                seen.extend(range(max(header.base_offset, wanted), header.last_offset + 1))
            offset = header.next_offset
    return seen


@pytest.mark.parametrize("seed", range(40))
def test_transaction_lives(seed: int) -> None:
    story = TransactionStory(Path("/"), seed)
    for _ in range(12):
        story.die()

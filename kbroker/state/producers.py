"""What a partition remembers of the producers that write to it, so that a retry is stored once (KIP-98).

Of each producer id: its epoch and its last five batches, as many as a producer may have in flight. A batch
that equals one of them is a duplicate; any other must follow the last one in sequence, or begin at zero in
a newer epoch. A producer that is not known may begin anywhere: its state may have expired here (KIP-360).
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kbroker.model import KafkaError
from protocol.errors import ErrorCode
from protocol.records.batch import CONTROL, TRANSACTIONAL, BatchHeader
from protocol.records.crc import crc32c

WINDOW = 5
MAX_SEQUENCE = 0x7FFFFFFF
NO_EPOCH = -1
NO_SEQUENCE = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1
NO_COORDINATOR_EPOCH = -1

# One batch as it was stored: (first sequence, last sequence, last offset, offset delta, max timestamp in ms).
StoredBatch = tuple[int, int, int, int, int]


class ActiveProducer(NamedTuple):
    """A producer as DescribeProducers shows it (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class ProducerEntry:
    """The state of one producer id. `last_timestamp` is that of its last batch, which expiry goes by."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "next_sequence",
        "txn_first_offset",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[StoredBatch] = deque(maxlen=WINDOW)
        # After an end-transaction marker of a new epoch there are no batches yet; the next has sequence 0.
        self.next_sequence = 0
        self.last_timestamp = NO_TIMESTAMP
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.txn_first_offset = NO_OFFSET


class ProducerStates:
    """The producers of one partition. Checks and updates take constant time per batch."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, header: BatchHeader) -> tuple[int, int, int] | None:
        """Check a client's batch that has a producer id, before it is appended.

        Gives None if it is to be appended, or (base offset, last offset, timestamp) of the stored batch
        that it repeats. Raises KafkaError: INVALID_PRODUCER_EPOCH for an older epoch than the last one,
        OUT_OF_ORDER_SEQUENCE_NUMBER for a gap or for a repetition that has left the window.
        """
        entry = self._entries.get(header[9])
        epoch: int = header[10]
        if entry is not None and entry.epoch == epoch:
            if header[11] == entry.next_sequence and epoch != NO_EPOCH:
                return None
            first, last = header[11], _add(header[11], header[6])
            for batch in entry.batches:
                if batch[0] == first and batch[1] == last:
                    return batch[2] - batch[3], batch[2], batch[4]
            if epoch != NO_EPOCH:
                raise _out_of_order(header, f"after {(entry.next_sequence - 1) & MAX_SEQUENCE}")
            return None
        known = entry.epoch if entry is not None else NO_EPOCH
        if epoch < known:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {header.producer_id} is {epoch}, below the last seen epoch {known}",
            )
        if header[11] != 0 and known != NO_EPOCH:
            raise _out_of_order(header, f"as the first of epoch {epoch}, after epoch {known}")
        return None

    def update(self, header: BatchHeader, base_offset: int) -> None:
        """Take note of a batch with a producer id that has been appended at `base_offset`; not of markers."""
        _, _, _, _, _, attributes, delta, _, timestamp, producer_id, epoch, first, _ = header
        if attributes & CONTROL:
            return
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self._enter(producer_id, epoch)
        if attributes & TRANSACTIONAL and entry.txn_first_offset == NO_OFFSET:
            entry.txn_first_offset = base_offset
        last = first + delta
        if last > MAX_SEQUENCE:
            last -= MAX_SEQUENCE + 1
        entry.batches.append((first, last, base_offset + delta, delta, timestamp))
        entry.next_sequence = last + 1 if last != MAX_SEQUENCE else 0
        entry.last_timestamp = timestamp

    def end_transaction(self, producer_id: int, epoch: int, coordinator_epoch: int, timestamp: int) -> None:
        """Take note of an end-transaction marker: the producer has no open transaction here."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self._enter(producer_id, epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.txn_first_offset = NO_OFFSET
        entry.last_timestamp = timestamp

    def _enter(self, producer_id: int, epoch: int) -> ProducerEntry:
        """A producer's first batch, or its first of another epoch: what was before is forgotten."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(epoch)
        else:
            entry.epoch = epoch
            entry.batches.clear()
            entry.next_sequence = 0
        return entry

    def recall(self, older: "ProducerStates") -> None:
        """Put before each producer's last batch those that `older` has seen lead up to it without a gap.

        A snapshot has the last batch only. `older` was learnt from headers that nobody has checked: what does not end
        with that same batch is not believed.
        """
        for producer_id, entry in self._entries.items():
            seen = older._entries.get(producer_id)
            if seen is None or seen.epoch != entry.epoch or not seen.batches or not entry.batches:
                continue
            last = entry.batches[-1]
            for batch in islice(reversed(seen.batches), 1, None) if seen.batches[-1][:4] == last[:4] else ():
                if _add(batch[1], 1) != entry.batches[0][0]:
                    break
                entry.batches.appendleft(batch)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers whose last batch is this old, unless a transaction is open; gives their number.

        Deleting their records does not remove producers (KIP-360). `expiration_ms` is
        producer.id.expiration.ms.
        """
        expired = [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.txn_first_offset == NO_OFFSET and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self._entries[producer_id]
        return len(expired)

    def clear(self) -> None:
        """Forget everything: the log is loaded again, from a snapshot or from its start."""
        self._entries.clear()

    def active(self) -> Iterator[ActiveProducer]:
        """The producers, for DescribeProducers."""
        for producer_id, entry in self._entries.items():
            last_sequence = entry.batches[-1][1] if entry.batches else NO_SEQUENCE
            yield ActiveProducer(
                producer_id,
                entry.epoch,
                last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )

    def to_snapshot(self) -> bytes:
        """The content of a .snapshot file in Kafka's format, which keeps each producer's last batch only."""
        parts = [_COUNT.pack(len(self._entries))]
        for producer_id, entry in self._entries.items():
            if entry.batches:
                _, last_sequence, last_offset, delta, _ = entry.batches[-1]
            else:
                last_sequence, last_offset, delta = NO_SEQUENCE, NO_OFFSET, 0
            parts.append(
                _ENTRY.pack(
                    producer_id,
                    entry.epoch,
                    last_sequence,
                    last_offset,
                    delta,
                    entry.last_timestamp,
                    entry.coordinator_epoch,
                    entry.txn_first_offset,
                )
            )
        body = b"".join(parts)
        return _PREFIX.pack(SNAPSHOT_VERSION, crc32c(body)) + body

    @classmethod
    def from_snapshot(cls, data: bytes, end_offset: int | None = None) -> "ProducerStates":
        """Read a .snapshot file, Kafka's or ours; raises ValueError if it is damaged.

        `end_offset`: the offset that it was taken at, beyond which it can know nothing.
        """
        states = cls()
        for producer_id, epoch, *batch, coordinator_epoch, txn_first_offset in snapshot_entries(data):
            entry = states._entries[producer_id] = ProducerEntry(epoch)
            last_sequence, last_offset, delta, timestamp = batch
            if end_offset is not None and last_offset >= end_offset:
                raise ValueError(f"producer snapshot that knows offset {last_offset}")
            if last_offset >= 0:
                entry.batches.append((_add(last_sequence, -delta), last_sequence, last_offset, delta, timestamp))
                entry.next_sequence = _add(last_sequence, 1)
            entry.last_timestamp = timestamp
            entry.coordinator_epoch = coordinator_epoch
            entry.txn_first_offset = txn_first_offset
        return states


SNAPSHOT_VERSION = 1

# Version and CRC-32C of what follows; the number of entries; one entry: producer id, epoch, last sequence,
# last offset, offset delta, timestamp, coordinator epoch, first offset of the open transaction.
_PREFIX = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
SnapshotEntry = tuple[int, int, int, int, int, int, int, int]


def snapshot_entries(data: bytes) -> Iterator[SnapshotEntry]:
    """What is in a .snapshot file; raises ValueError if it is damaged."""
    try:
        version, crc = _PREFIX.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _PREFIX.size)
    except StructError:
        raise ValueError(f"producer snapshot of {len(data)} bytes") from None
    if version != SNAPSHOT_VERSION:
        raise ValueError(f"producer snapshot of unknown version {version}")
    if crc32c(memoryview(data)[_PREFIX.size :]) != crc:
        raise ValueError("producer snapshot whose CRC is wrong")
    start = _PREFIX.size + _COUNT.size
    if count * _ENTRY.size != len(data) - start:
        raise ValueError(f"producer snapshot of {count} entries in {len(data) - start} bytes")
    return _ENTRY.iter_unpack(memoryview(data)[start:])


def read_snapshot_entries(data: bytes) -> Iterator[SnapshotEntry]:
    """As much of a damaged .snapshot file as has the form of entries, for people to look at."""
    body = memoryview(data)[_PREFIX.size + _COUNT.size :]
    return _ENTRY.iter_unpack(body[: len(body) - len(body) % _ENTRY.size])


def _add(sequence: int, increment: int) -> int:
    """Sequences go from 2^31 - 1 on to 0."""
    return (sequence + increment) & MAX_SEQUENCE


def _out_of_order(header: BatchHeader, where: str) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"Sequence {header.base_sequence} of producer {header.producer_id} is out of order {where}",
    )

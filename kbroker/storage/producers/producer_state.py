"""What a partition remembers of the producers that write to it, so that a retry is stored once (KIP-98).

Of each producer id: its epoch and its last five batches, as many as a producer may have in flight. A batch
that equals one of them is a duplicate; any other must follow the last one in sequence, or begin at zero in
a newer epoch. A producer that is not known may begin anywhere: its state may have expired here (KIP-360).
Beside that, whether a transaction of it is open here, and since which offset.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.storage.producers.ongoing_transactions import CompletedTransaction, OngoingTransactions
from kbroker.storage.producers.snapshot import encode_snapshot, snapshot_entries
from kbroker.storage.producers.transaction_marker import TransactionMarker
from kbroker.storage.producers.verification import VerificationGuard, VerificationStates
from protocol.errors import ErrorCode
from protocol.records.batch import TRANSACTIONAL, BatchHeader

WINDOW = 5
MAX_SEQUENCE = 0x7FFFFFFF
MAX_EPOCH = 0x7FFF
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


class ProducerStateEntry:
    """The state of one producer id. `last_timestamp` is that of its last batch, which expiry goes by. `open`: the bit
    TRANSACTIONAL, which its batches have to have, while a transaction is open; else 0."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "next_sequence",
        "open",
        "txn_first_offset",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[StoredBatch] = deque(maxlen=WINDOW)
        # After an end-transaction marker of a new epoch there are no batches yet; the next has sequence 0.
        self.next_sequence = 0
        self.last_timestamp = NO_TIMESTAMP
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.open = 0
        self.txn_first_offset = NO_OFFSET


class ProducerStateManager:
    """The producers of one partition. Checks and updates take constant time per batch."""

    __slots__ = ("_entries", "transactions", "verifications")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerStateEntry] = {}
        self.transactions = OngoingTransactions()
        self.verifications = VerificationStates()

    def __len__(self) -> int:
        return len(self._entries)

    def check(
        self, header: BatchHeader, guard: VerificationGuard | None = None, verify: bool = False
    ) -> tuple[int, int, int] | None:
        """Check a client's batch that has a producer id, before it is appended.

        Gives None if it is to be appended, or (base offset, last offset, timestamp) of the stored batch
        that it repeats. Raises KafkaError: INVALID_PRODUCER_EPOCH for an older epoch than the last one,
        OUT_OF_ORDER_SEQUENCE_NUMBER for a gap or for a repetition that has left the window, INVALID_TXN_STATE for a
        batch outside of a transaction while one is open. With `verify` also for one that begins a transaction without
        the `guard` under which its coordinator was asked.
        """
        entry = self._entries.get(header[9])
        epoch: int = header[10]
        if entry is not None and entry.epoch == epoch:
            if header[11] == entry.next_sequence and epoch != NO_EPOCH and header[5] & TRANSACTIONAL == entry.open:
                return None
            first, last = header[11], _add(header[11], header[6])
            for batch in entry.batches:
                if batch[0] == first and batch[1] == last:
                    return batch[2] - batch[3], batch[2], batch[4]
        known = entry.epoch if entry is not None else NO_EPOCH
        if epoch < known:
            raise _old_epoch(header, known)
        if header[5] & TRANSACTIONAL and (entry is None or not entry.open or epoch != known):
            self._check_begin(header, guard, verify, entry is not None and bool(entry.batches))
        if entry is not None and known == epoch:
            if epoch != NO_EPOCH and header[11] != entry.next_sequence:
                raise _out_of_order(header, f"after {(entry.next_sequence - 1) & MAX_SEQUENCE}")
        elif header[11] != 0 and known != NO_EPOCH:
            raise _out_of_order(header, f"as the first of epoch {epoch}, after epoch {known}")
        if entry is not None and entry.open and not header[5] & TRANSACTIONAL:
            raise _outside(header)
        return None

    def check_internal(self, header: BatchHeader, guard: VerificationGuard | None, verify: bool) -> None:
        """Check a coordinator's transactional batch, which has no sequences. Raises KafkaError as `check`."""
        entry = self._entries.get(header[9])
        known = entry.epoch if entry is not None else NO_EPOCH
        if header[10] < known:
            raise _old_epoch(header, known)
        if (
            verify
            and not self.has_open_transaction(header[9], header[10])
            and not self.verifications.holds(header[9], guard)
        ):
            raise _unverified()

    def _check_begin(
        self, header: BatchHeader, guard: VerificationGuard | None, verify: bool, known_batches: bool
    ) -> None:
        if verify and not self.verifications.holds(header.producer_id, guard):
            raise _unverified()
        self.verifications.check_sequence(header, known_batches)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of this producer and epoch is open here."""
        entry = self._entries.get(producer_id)
        return entry is not None and bool(entry.open) and entry.epoch == epoch

    def begin_verification(self, producer_id: int, epoch: int, sequence: int, tv2: bool) -> VerificationGuard | None:
        """What to show with the append when the coordinator has confirmed that this partition is part of the
        transaction; None if it was confirmed before. `tv2`: the client speaks version 2 of transactions. Raises
        KafkaError(INVALID_PRODUCER_EPOCH)."""
        entry = self._entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {producer_id} is {epoch}, which is smaller than the last seen epoch {entry.epoch}",
            )
        if self.has_open_transaction(producer_id, epoch):
            return None
        return self.verifications.begin(producer_id, epoch, sequence, tv2)

    def check_marker(self, marker: TransactionMarker) -> None:
        """Check an end-transaction marker before it is appended. Raises KafkaError: INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED.

        From version 2 of transactions on a marker has a newer epoch than what it ends, so one that is late ends
        nothing (KIP-890, KIP-1228). A repetition of the last one is appended once more, as in Kafka, and harmless.
        """
        entry = self._entries.get(marker.producer_id)
        if entry is None:
            return
        epoch, known, strict = marker.producer_epoch, entry.epoch, marker.transaction_version >= 2
        repeated = strict and epoch == known and (not entry.open or epoch == MAX_EPOCH)
        if not repeated and (epoch <= known if strict else epoch < known):
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {marker.producer_id} is {epoch}, which is {'<=' if strict else '<'} the last seen "
                f"epoch {known} (TV{marker.transaction_version})",
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Invalid coordinator epoch for producerId {marker.producer_id}: {marker.coordinator_epoch} (zombie), "
                f"{entry.coordinator_epoch} (current)",
            )

    def update(self, header: BatchHeader, base_offset: int) -> None:
        """Take note of a batch of data with a producer id that has been appended at `base_offset`."""
        _, _, _, _, _, attributes, delta, _, timestamp, producer_id, epoch, first, _ = header
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self._enter(producer_id, epoch)
        last = first + delta
        if last > MAX_SEQUENCE:
            last -= MAX_SEQUENCE + 1
        if attributes & TRANSACTIONAL:
            if not entry.open:
                entry.open = TRANSACTIONAL
                entry.txn_first_offset = base_offset
                self.transactions.begin(producer_id, base_offset)
                self.verifications.end(producer_id)
            if first == NO_SEQUENCE:
                # A coordinator's.
                last = NO_SEQUENCE
        entry.batches.append((first, last, base_offset + delta, delta, timestamp))
        entry.next_sequence = last + 1 if last != MAX_SEQUENCE else 0
        entry.last_timestamp = timestamp

    def end_transaction(
        self, header: BatchHeader, offset: int, committed: bool, coordinator_epoch: int
    ) -> CompletedTransaction | None:
        """Take note of an end-transaction marker that has been appended at `offset`.

        Gives what it has ended, None if the producer has written nothing here: such a marker changes nothing.
        """
        producer_id, epoch = header[9], header[10]
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self._enter(producer_id, epoch)
        first_offset, entry.txn_first_offset, entry.open = entry.txn_first_offset, NO_OFFSET, 0
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = header[8]
        self.verifications.end(producer_id)
        if first_offset == NO_OFFSET:
            return None
        return self.transactions.end(producer_id, first_offset, offset, committed)

    def _enter(self, producer_id: int, epoch: int) -> ProducerStateEntry:
        """A producer's first batch, or its first of another epoch: what was before is forgotten."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerStateEntry(epoch)
        else:
            entry.epoch = epoch
            entry.batches.clear()
            entry.next_sequence = 0
            self.verifications.end(producer_id)
        return entry

    def recall(self, older: "ProducerStateManager") -> None:
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
            if not entry.open and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self._entries[producer_id]
        self.verifications.remove_expired(now_ms, expiration_ms)
        return len(expired)

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

    def last_words(self) -> tuple[frozenset[int], frozenset[tuple[int, int]]]:
        """What compaction leaves of each producer, so that its state can be learnt anew: the last offset of its last
        batch of data, or (producer id, epoch) of one of which a marker is the last that is known."""
        offsets = frozenset([entry.batches[-1][2] for entry in self._entries.values() if entry.batches])
        markers = [(producer_id, entry.epoch) for producer_id, entry in self._entries.items() if not entry.batches]
        return offsets, frozenset(markers)

    def to_snapshot(self) -> bytes:
        """The content of a .snapshot file in Kafka's format, which keeps each producer's last batch only."""
        entries = []
        for producer_id, entry in self._entries.items():
            sequence, offset, delta = NO_SEQUENCE, NO_OFFSET, 0
            if entry.batches:
                _, sequence, offset, delta, _ = entry.batches[-1]
            rest = (entry.last_timestamp, entry.coordinator_epoch, entry.txn_first_offset)
            entries.append((producer_id, entry.epoch, sequence, offset, delta, *rest))
        return encode_snapshot(entries)

    @classmethod
    def from_snapshot(cls, data: bytes, end_offset: int | None = None) -> "ProducerStateManager":
        """Read a .snapshot file, Kafka's or ours; raises ValueError if it is damaged.

        `end_offset`: the offset that it was taken at, beyond which it can know nothing.
        """
        states = cls()
        opened = []
        for producer_id, epoch, *batch, coordinator_epoch, txn_first_offset in snapshot_entries(data):
            entry = states._entries[producer_id] = ProducerStateEntry(epoch)
            last_sequence, last_offset, delta, timestamp = batch
            if end_offset is not None and max(last_offset, txn_first_offset) >= end_offset:
                raise ValueError(f"producer snapshot that knows offset {max(last_offset, txn_first_offset)}")
            if last_offset >= 0:
                first = _add(last_sequence, -delta) if last_sequence >= 0 else NO_SEQUENCE
                entry.batches.append((first, last_sequence, last_offset, delta, timestamp))
                entry.next_sequence = _add(last_sequence, 1)
            entry.last_timestamp = timestamp
            entry.coordinator_epoch = coordinator_epoch
            if txn_first_offset >= 0:
                entry.txn_first_offset = txn_first_offset
                entry.open = TRANSACTIONAL
                opened.append((txn_first_offset, producer_id))
        states.transactions.restore(opened)
        return states


def _add(sequence: int, increment: int) -> int:
    """Sequences go from 2^31 - 1 on to 0."""
    return (sequence + increment) & MAX_SEQUENCE


def _out_of_order(header: BatchHeader, where: str) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"Sequence {header.base_sequence} of producer {header.producer_id} is out of order {where}",
    )


def _old_epoch(header: BatchHeader, known: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Epoch of producer {header.producer_id} is {header.producer_epoch}, below the last seen epoch {known}",
    )


def _unverified() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")


def _outside(header: BatchHeader) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_TXN_STATE, f"Expected transactional write from producer {header.producer_id}")

"""The state of the producers that write to a partition. With it a retried batch is stored only once (KIP-98).

For each producer id it has the epoch and the last five batches, as many as a producer may have in flight. A batch that
equals one of them is a duplicate; any other must follow the last one in sequence, or begin at zero in a newer epoch. An
unknown producer may begin with any sequence, since its state may have expired (KIP-360). The state also has the first
offset of the producer's open transaction.
"""

from collections.abc import Callable, Iterator
from itertools import islice

from kbroker.common import KafkaError
from kbroker.runtime.turns import yield_if_due
from kbroker.storage.producers.producer_table import (
    MAX_BATCHES,
    MAX_SEQUENCE,
    NO_EPOCH,
    NO_OFFSET,
    NO_SEQUENCE,
    ActiveProducer,
    FrozenProducers,
    ProducerStateEntry,
    ProducerTable,
    add_sequence,
)
from kbroker.storage.producers.transactions import (
    CompletedTransaction,
    OngoingTransactions,
    TransactionMarker,
    VerificationGuard,
    VerificationStates,
)
from protocol.errors import ErrorCode
from protocol.records.batch import TRANSACTIONAL, BatchHeader

MAX_EPOCH = 0x7FFF
# The producers with these ids forward the records of closing partitions (queues/closing/). No client gets such an id.
FIRST_FORWARDER_ID = 1 << 62
# The producers that wrote last are kept unpacked, at most this many since the last snapshot.
MAX_RECENT = 256
_ROWS_AT_ONCE = 64

# What partitions without producers, transactions or verifications share: own empty ones take 400 bytes. They are not
# changed.
_NO_PRODUCERS: dict[int, ProducerStateEntry] = {}
_NO_TRANSACTIONS = OngoingTransactions()
_NO_VERIFICATIONS = VerificationStates()


class ProducerStateManager:
    """The state of all producers of one partition. Checks and updates take constant time per batch.

    The producers that wrote last are objects, which is fast; the others are packed in a table, which is small.
    `had_transactions`: the snapshot from which it was loaded has a producer that has used transactions.
    """

    __slots__ = ("_recent", "_table", "had_transactions", "transactions", "verifications")

    def __init__(self) -> None:
        # Newer than the table.
        self._recent = _NO_PRODUCERS
        # None while there are only recent ones: most partitions have no producer.
        self._table: ProducerTable | None = None
        self.had_transactions = False
        self.transactions = _NO_TRANSACTIONS
        self.verifications = _NO_VERIFICATIONS

    def __len__(self) -> int:
        table = self._table
        if table is None:
            return len(self._recent)
        return len(table) + sum(1 for producer_id in self._recent if producer_id not in table)

    def _find(self, producer_id: int) -> ProducerStateEntry | None:
        """Return the state of a producer, which may then be changed."""
        entry = self._recent.get(producer_id)
        if entry is None and self._table is not None:
            entry = self._table.get(producer_id)
            if entry is not None:
                self._add_recent(producer_id, entry)
        return entry

    def _add_recent(self, producer_id: int, entry: ProducerStateEntry) -> None:
        if len(self._recent) >= MAX_RECENT:
            self._pack_recent()
        if self._recent is _NO_PRODUCERS:
            self._recent = {}
        self._recent[producer_id] = entry

    def _pack_recent(self) -> ProducerTable | None:
        """Pack the recent producers. Returns the table, which has all producers then; None if there are none."""
        recent = self._recent
        if recent:
            table = self._table = self._table or ProducerTable()
            for producer_id, entry in recent.items():
                table.put(producer_id, entry)
            recent.clear()
        return self._table

    def freeze(self) -> FrozenProducers:
        """Return the producers as they are now. Takes the time of at most 256 producers, however many there
        are."""
        table = self._pack_recent()
        return table.freeze() if table is not None else FrozenProducers()

    def check(
        self, header: BatchHeader, guard: VerificationGuard | None = None, verify: bool = False
    ) -> tuple[int, int, int] | None:
        """Check a client's batch that has a producer id, before it is appended.

        Returns None if the batch is to be appended, or (base offset, last offset, max timestamp) of the stored batch
        that it duplicates. Raises KafkaError: INVALID_PRODUCER_EPOCH for an old epoch; OUT_OF_ORDER_SEQUENCE_NUMBER for
        a gap, and for a duplicate of an older batch than the last five; INVALID_TXN_STATE for a batch outside of the
        open transaction, and with `verify` for one that begins a transaction without the `guard` of its verification.
        """
        _, _, _, _, _, attributes, delta, _, _, producer_id, epoch, first, _ = header
        if producer_id >= FIRST_FORWARDER_ID:
            message = f"Producer id {producer_id} is reserved for brokers."
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, message)
        transactional = attributes & TRANSACTIONAL
        entry = self._recent.get(producer_id) or self._find(producer_id)
        if entry is not None and entry.epoch == epoch:
            if first == entry.next_sequence and epoch != NO_EPOCH and transactional == entry.open_bit:
                return None
            last = add_sequence(first, delta)
            for stored_first, stored_last, last_offset, offset_delta, max_timestamp in entry.last_batches():
                if stored_first == first and stored_last == last:
                    return last_offset - offset_delta, last_offset, max_timestamp
        known_epoch = entry.epoch if entry is not None else NO_EPOCH
        if epoch < known_epoch:
            raise _old_epoch(header, known_epoch)
        if transactional and (entry is None or not entry.open_bit or epoch != known_epoch):
            self._check_first_batch(header, guard, verify, entry is not None and bool(entry.batches))
        if entry is not None and known_epoch == epoch:
            if epoch != NO_EPOCH and first != entry.next_sequence:
                raise _out_of_order(header, f"after {(entry.next_sequence - 1) & MAX_SEQUENCE}")
        elif first != 0 and known_epoch != NO_EPOCH:
            raise _out_of_order(header, f"as the first of epoch {epoch}, after epoch {known_epoch}")
        if entry is not None and entry.open_bit and not transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"Expected transactional write from producer {header.producer_id}"
            )
        return None

    def check_internal(self, header: BatchHeader, guard: VerificationGuard | None, verify: bool) -> None:
        """Check a transactional batch of a coordinator, which has no sequences. Raises the errors of `check`."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        entry = self._find(producer_id)
        known_epoch = entry.epoch if entry is not None else NO_EPOCH
        if epoch < known_epoch:
            raise _old_epoch(header, known_epoch)
        is_verified = self.has_open_transaction(producer_id, epoch) or self.verifications.is_valid(producer_id, guard)
        if verify and not is_verified:
            raise _not_verified()

    def _check_first_batch(
        self, header: BatchHeader, guard: VerificationGuard | None, verify: bool, has_batches: bool
    ) -> None:
        """Check a batch that begins a transaction."""
        if verify and not self.verifications.is_valid(header.producer_id, guard):
            raise _not_verified()
        self.verifications.check_sequence(header, has_batches)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether this producer has an open transaction with this epoch."""
        entry = self._find(producer_id)
        return entry is not None and bool(entry.open_bit) and entry.epoch == epoch

    def begin_verification(self, producer_id: int, epoch: int, sequence: int, tv2: bool) -> VerificationGuard | None:
        """Begin to verify with the coordinator that the partition is part of the producer's transaction.

        Returns the guard for the append, or None if the transaction is already open in the partition. `tv2`: the client
        uses transactions of version 2. Raises KafkaError(INVALID_PRODUCER_EPOCH).
        """
        entry = self._find(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {producer_id} is {epoch}, which is smaller than the last seen epoch {entry.epoch}",
            )
        if self.has_open_transaction(producer_id, epoch):
            return None
        if self.verifications is _NO_VERIFICATIONS:
            self.verifications = VerificationStates()
        return self.verifications.begin(producer_id, epoch, sequence, tv2)

    def check_marker(self, marker: TransactionMarker) -> None:
        """Check an end-transaction marker before it is appended.

        With transactions of version 2 a marker has a newer epoch than the transaction, so that a late marker ends
        nothing (KIP-890, KIP-1228). As in Kafka, a repetition of the last marker is appended again, which is harmless.
        Raises KafkaError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        entry = self._find(marker.producer_id)
        if entry is None:
            return
        epoch, known_epoch, must_be_newer = marker.producer_epoch, entry.epoch, marker.transaction_version >= 2
        is_repeated = must_be_newer and epoch == known_epoch and (not entry.open_bit or epoch == MAX_EPOCH)
        if not is_repeated and (epoch <= known_epoch if must_be_newer else epoch < known_epoch):
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {marker.producer_id} is {epoch}, which is {'<=' if must_be_newer else '<'} the "
                f"last seen epoch {known_epoch} (TV{marker.transaction_version})",
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Invalid coordinator epoch for producerId {marker.producer_id}: {marker.coordinator_epoch} (zombie), "
                f"{entry.coordinator_epoch} (current)",
            )

    def update(self, header: BatchHeader, base_offset: int) -> None:
        """Update the state with a batch of records, which has a producer id and was appended at `base_offset`."""
        _, _, _, _, _, attributes, delta, _, timestamp, producer_id, epoch, first, _ = header
        entry = self._recent.get(producer_id) or self._find(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self._begin_epoch(producer_id, epoch)
        last = first + delta
        if last > MAX_SEQUENCE:
            last -= MAX_SEQUENCE + 1
        if attributes & TRANSACTIONAL:
            if not entry.open_bit:
                entry.open_bit = TRANSACTIONAL
                entry.txn_first_offset = base_offset
                self._own_transactions().begin(producer_id, base_offset)
                self.verifications.end(producer_id)
            if first == NO_SEQUENCE:
                # It is the batch of a coordinator.
                last = NO_SEQUENCE
        batches = entry.batches
        batches.append((first, last, base_offset + delta, delta, timestamp))
        if len(batches) > MAX_BATCHES:
            del batches[0]
        entry.next_sequence = last + 1 if last != MAX_SEQUENCE else 0
        entry.last_timestamp = timestamp

    def end_transaction(
        self, header: BatchHeader, offset: int, committed: bool, coordinator_epoch: int
    ) -> CompletedTransaction | None:
        """Update the state with an end-transaction marker that was appended at `offset`.

        Returns the transaction that it has ended; None if the producer had none in this partition.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        entry = self._find(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self._begin_epoch(producer_id, epoch)
        first_offset, entry.txn_first_offset, entry.open_bit = entry.txn_first_offset, NO_OFFSET, 0
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        self.verifications.end(producer_id)
        if first_offset == NO_OFFSET:
            return None
        return self.transactions.end(producer_id, first_offset, offset, committed)

    def _own_transactions(self) -> OngoingTransactions:
        """Return the transactions, to add some."""
        if self.transactions is _NO_TRANSACTIONS:
            self.transactions = OngoingTransactions()
        return self.transactions

    def hold_transactions(self, first_offset: int, last_offset: int) -> None:
        """Regard everything from `first_offset` on as unstable until the high watermark is above `last_offset`."""
        self._own_transactions().hold(first_offset, last_offset)

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Mark transactions with a marker below the high watermark as stable."""
        self.transactions.on_high_watermark_updated(high_watermark)

    def keep_completed_transactions(self, before: "ProducerStateManager", below: int) -> None:
        """Take over from the state before a truncation which transactions have ended above the high watermark.

        Only those with a marker below `below` are missing here: the state was rebuilt from that offset on.
        """
        self._own_transactions().restore_completed(before.transactions, below)

    def _begin_epoch(self, producer_id: int, epoch: int) -> ProducerStateEntry:
        """Start the state of a new producer or a new epoch: older batches no longer count."""
        entry = self._find(producer_id)
        if entry is None:
            entry = ProducerStateEntry(epoch)
            self._add_recent(producer_id, entry)
        else:
            entry.begin_epoch(epoch)
            self.verifications.end(producer_id)
        return entry

    def prepend_batches(self, older: "ProducerStateManager") -> None:
        """Insert the batches in `older` that precede each producer's last batch without a gap.

        A snapshot has only the last batch. `older` comes from headers without a CRC check, so it is ignored unless it
        ends with that same batch.
        """
        table = older._table
        packed = [saved.producer_id for saved in table.freeze()] if table is not None else []
        for producer_id in dict.fromkeys([*older._recent, *packed]):
            entry, found = self._find(producer_id), older._find(producer_id)
            if entry is None or found is None or found.epoch != entry.epoch or not found.batches or not entry.batches:
                continue
            if found.batches[-1][:4] != entry.batches[-1][:4]:
                continue
            for batch in islice(reversed(found.last_batches()), 1, None):
                if add_sequence(batch[1], 1) != entry.batches[0][0] or len(entry.batches) >= MAX_BATCHES:
                    break
                entry.batches.insert(0, batch)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers whose last batch is older than producer.id.expiration.ms. Returns their number.

        A producer with an open transaction is kept, and those that forward the records of closing partitions: without
        their state records could be forwarded twice. Deleting the records of a producer does not remove its state
        (KIP-360). Batches may be appended between two turns.
        """
        removed, table = 0, self._pack_recent()
        # From the last row on: what takes the place of a removed row was checked before, or is new.
        for slot in range(len(table) - 1 if table is not None else -1, -1, -1):
            assert table is not None
            producer_id = table.expired(slot, now_ms - expiration_ms)
            if producer_id is not None and producer_id < FIRST_FORWARDER_ID and producer_id not in self._recent:
                table.remove(producer_id)
                removed += 1
            if slot % _ROWS_AT_ONCE == 0:
                yield_if_due()
        self.verifications.remove_expired(now_ms, expiration_ms)
        return removed

    def first_of_last_batch(self, producer_id: int) -> tuple[int, int] | None:
        """Return the epoch of a producer, and the first sequence of its last batch; None if there is none."""
        entry = self._find(producer_id)
        return None if entry is None or not entry.batches else (entry.epoch, entry.batches[-1][0])

    def active(self) -> Iterator[ActiveProducer]:
        """Return all producers, for DescribeProducers."""
        # There may be other requests between two producers.
        for saved in self.freeze():
            yield ActiveProducer(
                saved.producer_id,
                saved.producer_epoch,
                saved.last_sequence,
                saved.timestamp,
                saved.coordinator_epoch,
                saved.txn_first_offset,
            )

    def to_snapshot(self) -> Callable[[], bytearray]:
        """Return a function for a thread that returns the content of a .snapshot file with the current state, in
        Kafka's format. It has only the last batch of each producer."""
        return self.freeze().encode

    @classmethod
    def from_snapshot(cls, data: bytes, end_offset: int | None = None) -> "ProducerStateManager":
        """Read a .snapshot file of Kafka or kbroker. Raises ValueError if it is damaged.

        `end_offset`: the offset at which it was taken. A later offset in it is damage.
        """
        states = cls()
        table, open_transactions, states.had_transactions = ProducerTable.from_snapshot(data, end_offset)
        states._table = table if table else None
        states._own_transactions().restore(open_transactions)
        return states


def _out_of_order(header: BatchHeader, where: str) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"Sequence {header.base_sequence} of producer {header.producer_id} is out of order {where}",
    )


def _old_epoch(header: BatchHeader, known_epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Epoch of producer {header.producer_id} is {header.producer_epoch}, below the last seen epoch {known_epoch}",
    )


def _not_verified() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")

"""The transactional ids of one partition of __transaction_state: changes go in, committed records are applied."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kbroker.coordinator.runtime.coordinator_context import CoordinatorContext, Ended, Limits, Loaded, Status
from kbroker.coordinator.transaction import end_transaction as ending
from kbroker.coordinator.transaction.record_codec import decode_record, encode_record
from kbroker.coordinator.transaction.transaction_metadata import (
    NO_EPOCH,
    Record,
    TransactionEntry,
    TransactionMetadata,
    TransactionTombstone,
)
from kbroker.coordinator.transaction.transaction_state import PREPARED, TransactionState
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.common import TopicPartition
    from kbroker.coordinator.internal_log import InternalLog, TransactionConfig
    from kbroker.coordinator.transaction.marker_sender import MarkerSenders, TransactionMarkerSender
    from kbroker.runtime.environment import Environment

Done = Callable[[ErrorCode], None]


class TransactionShard:
    """Durable state changes in `apply`; `pending` of an entry is soft, and lost with the partition."""

    def __init__(
        self,
        environment: Environment,
        internal_log: InternalLog,
        tp: TopicPartition,
        epoch: int,
        config: Callable[[], TransactionConfig],
        server_version: Callable[[], int],
        completions: MarkerSenders,
    ) -> None:
        """`epoch`: the partition's leader epoch, which markers carry. `server_version`: the finalized
        transaction.version.
        """
        self.epoch = epoch
        self.entries: dict[str, TransactionEntry] = {}
        self.completions = completions
        self._environment = environment
        self._config = config
        self._server_version = server_version
        self.runtime: CoordinatorContext[Record] = CoordinatorContext(environment, internal_log, tp, self, self._limits)

    def _limits(self) -> Limits:
        config = self._config()
        return Limits(config.message_max_bytes, load_bytes=config.transaction_state_log_load_buffer_size)

    # Changes.

    def change(self, entry: TransactionEntry, to: TransactionMetadata, done: Done) -> None:
        """Write a decision down. Until `done` nothing else happens to the transactional id."""
        entry.pending = to.state
        self.runtime.write([to], partial(self._changed, entry, to, done))

    def _changed(self, entry: TransactionEntry, to: TransactionMetadata, done: Done, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            entry.pending = None
            if entry.transaction.producer_epoch == NO_EPOCH:
                # It never was.
                self.entries.pop(to.transactional_id, None)
        elif to.state in PREPARED:
            self._complete(entry)
        done(error)

    def _complete(self, entry: TransactionEntry) -> None:
        """The prepare is committed: whatever happens, the transaction will end so."""
        transaction = entry.transaction
        entry.pending = ending.completed(transaction, transaction.last_update_ms).state
        self.completions.begin(transaction, self.epoch, self._all_marked)

    def _all_marked(self, completion: TransactionMarkerSender) -> None:
        to = ending.completed(completion.transaction, self._environment.clock.now_ms())
        self.runtime.write([to], partial(self._completed, completion))

    def _completed(self, completion: TransactionMarkerSender, error: ErrorCode) -> None:
        if not self.completions.is_under_way(completion):
            return
        if error is ErrorCode.NONE:
            self.completions.drop(completion)
        elif self.runtime.status is Status.ACTIVE:
            # The disk may be full; the markers are written, so only this is left to do.
            completion.later(partial(self._all_marked, completion))

    def forget(self, entry: TransactionEntry) -> None:
        """A transactional id that nobody has used for long."""
        entry.pending = TransactionState.DEAD
        tombstone = TransactionTombstone(entry.transaction.transactional_id)
        self.runtime.write([tombstone], partial(self._forgotten, entry))

    def _forgotten(self, entry: TransactionEntry, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            entry.pending = None

    def seen(self, entry: TransactionEntry) -> TransactionMetadata:
        """As others see it: of a transaction that is being completed, the partitions that have no marker yet."""
        completion = self.completions.get(entry.transaction.transactional_id)
        if completion is None or entry.transaction is not completion.transaction:
            return entry.transaction
        return entry.transaction._replace(partitions=frozenset(completion.remaining))

    # Runtime's machine.

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        return encode_record(record, self._server_version())

    def decode(self, key: bytes | None, value: bytes | None) -> Record | None:
        return decode_record(key, value)

    def apply(self, record: Record) -> None:
        """Take a committed record in."""
        if isinstance(record, TransactionTombstone):
            self.entries.pop(record.transactional_id, None)
            return
        entry = self.entries.get(record.transactional_id)
        if entry is None:
            self.entries[record.transactional_id] = TransactionEntry(record)
        else:
            entry.transaction = record
            entry.pending = None

    def load(self, item: Loaded[Record] | Ended) -> None:
        """Nothing is written within transactions here."""
        if isinstance(item, Loaded):
            self.apply(item.record)

    def start(self) -> None:
        """Loading is done: what was prepared is completed."""
        self.runtime.activate()
        if self.runtime.status is not Status.ACTIVE:
            return
        for entry in list(self.entries.values()):
            if entry.transaction.state in PREPARED:
                self._complete(entry)

    def lost(self, error: ErrorCode) -> None:
        """Whoever waited for a write was told already. The next coordinator goes on with the markers."""
        self.entries = {}
        self.completions.clear()

"""What coordinators need of the rooms below them."""

from collections.abc import Callable
from typing import Protocol

from kbroker.common import TopicPartition
from kbroker.storage.producers.transaction_marker import TransactionMarker
from kbroker.storage.producers.verification import VerificationGuard
from protocol.errors import ErrorCode

__all__ = [
    "GROUP_METADATA_TOPIC", "TRANSACTION_STATE_TOPIC", "Config", "InternalLog", "MarkerWriter", "TransactionConfig",
    "TransactionMarker",
]  # fmt: skip

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"


class InternalLog(Protocol):
    """The replica manager, as far as a coordinator's partition goes."""

    def append_internal(
        self, tp: TopicPartition, batch: bytearray, *, guard: VerificationGuard | None = None, verify: bool = False
    ) -> int:
        """Append one batch; gives the log end offset after it. Raises KafkaError, and then nothing was
        appended. With `verify` a transactional batch is taken only when the transaction is open there, or with the
        guard of `begin_verification` while nothing has ended since.
        """
        ...

    def begin_verification(self, tp: TopicPartition, producer_id: int, epoch: int) -> VerificationGuard | None:
        """Before it is verified that the partition is part of a producer's transaction; None if the transaction is
        open there, so that it was verified before. Raises KafkaError.
        """
        ...

    def write_marker(self, tp: TopicPartition, marker: TransactionMarker, done: Callable[[ErrorCode], None]) -> None:
        """As a MarkerWriter's, without what coordinators make of it. Calls back in the order of the log, as
        `on_committed`.
        """
        ...

    def on_committed(self, tp: TopicPartition, offset: int, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once, perhaps at once: NONE when the high watermark is at `offset`, else why it never
        will.
        """
        ...

    def read_internal_blocking(self, tp: TopicPartition, offset: int, size: int) -> bytes:
        """About `size` bytes of whole batches from `offset` or from the log's start, b"" at its end. Called in a
        thread.
        """
        ...


class MarkerWriter(Protocol):
    """Who brings the end of a transaction to a partition, whoever keeps it."""

    def write_marker(self, tp: TopicPartition, marker: TransactionMarker, done: Callable[[ErrorCode], None]) -> None:
        """Append the marker; done(NONE) when the high watermark has passed it (and a group's offsets are
        applied), else done(error). `done` may be called at once. Never raises.
        """
        ...


class Config(Protocol):
    """The broker configs that the group coordinator follows (a BrokerConfig fits)."""

    @property
    def group_coordinator_append_linger_ms(self) -> int: ...
    @property
    def group_initial_rebalance_delay_ms(self) -> int: ...
    @property
    def group_min_session_timeout_ms(self) -> int: ...
    @property
    def group_max_session_timeout_ms(self) -> int: ...
    @property
    def group_max_size(self) -> int: ...
    @property
    def message_max_bytes(self) -> int: ...
    @property
    def offset_metadata_max_bytes(self) -> int: ...
    @property
    def offsets_commit_timeout_ms(self) -> int: ...
    @property
    def offsets_load_buffer_size(self) -> int: ...
    @property
    def offsets_retention_minutes(self) -> int: ...
    @property
    def offsets_retention_check_interval_ms(self) -> int: ...
    @property
    def offsets_topic_compression_codec(self) -> int: ...
    @property
    def offsets_topic_num_partitions(self) -> int: ...
    @property
    def node_id(self) -> int: ...


class TransactionConfig(Protocol):
    """The broker configs that the transaction coordinator follows (a BrokerConfig fits)."""

    @property
    def message_max_bytes(self) -> int: ...
    @property
    def node_id(self) -> int: ...
    @property
    def transaction_abort_timed_out_transaction_cleanup_interval_ms(self) -> int: ...
    @property
    def transaction_max_timeout_ms(self) -> int: ...
    @property
    def transaction_remove_expired_transaction_cleanup_interval_ms(self) -> int: ...
    @property
    def transaction_state_log_load_buffer_size(self) -> int: ...
    @property
    def transaction_state_log_num_partitions(self) -> int: ...
    @property
    def transactional_id_expiration_ms(self) -> int: ...

"""A blocking producer: batches for each partition, sent in rounds, each batch until it is acknowledged.

At most one batch of a partition is in flight, so that resending one keeps the order, and the sequence of an idempotent
producer. One round of requests is in flight while the batches of the next one are filled.
"""

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic, time
from typing import NamedTuple

from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import BrokerConnection, BrokerUnreachable
from kbroker.client.requests import TRANSACTION, BrokerError, check
from kbroker.client.retries import Retries
from kbroker.common import TopicPartition
from protocol.errors import ErrorCode, known_error
from protocol.messages.k00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.messages.k22_transactions import InitProducerIdRequest, InitProducerIdResponse
from protocol.murmur2 import murmur2
from protocol.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TRANSACTIONAL, NewRecord, build_batch
from protocol.records.compression import NONE

ACKS_ALL = -1
REQUEST_TIMEOUT_MS = 30_000
# A batch is sent again for this time.
DELIVERY_FOR_S = 30.0
NEW_TOPIC_FOR_S, UNKNOWN_TOPIC_FOR_S = 10.0, 1.5
BATCH_BYTES = 256 << 10
# What a record has beside key, value and headers in a batch, at most, if these are short.
RECORD_OVERHEAD_BYTES = 12
MAX_VALUES = 1000
_SEQUENCE_MASK = 0x7FFFFFFF
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})

Header = tuple[str, bytes | None]


class DeliveryError(BrokerError):
    """A record was not acknowledged. `number`: its position among the records of the producer, from 1."""

    def __init__(self, number: int, code: int, message: str | None) -> None:
        super().__init__(code, f"record {number}", message)
        self.number = number


class UnknownPartition(Exception):
    """A record is for a partition that its topic does not have."""


class ProducerId(NamedTuple):
    """The identity of an idempotent or transactional producer."""

    id: int
    epoch: int


class _Batch:
    """Records for one partition."""

    __slots__ = ("began_s", "encoded", "numbers", "partition", "records", "size")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.began_s = monotonic()
        self.records: list[NewRecord] = []
        # The positions of the records among those of the producer, from 1.
        self.numbers: list[int] = []
        self.size = 0
        self.encoded: bytearray | None = None


class AcknowledgedBatch(NamedTuple):
    """What a broker has stored. `numbers`: the positions of the records among those of the producer, from 1.

    `base_offset`: of the first, -1 with acks=0. `seconds`: since the first was added.
    """

    partition: TopicPartition
    numbers: Sequence[int]
    base_offset: int
    seconds: float


Failed = tuple[_Batch, BrokerError | OSError]


class BlockingProducer:
    """Use `add` for each record, and `flush` at the end or before a pause."""

    def __init__(
        self,
        cluster: ClusterClient,
        *,
        acks: int = ACKS_ALL,
        codec: int = NONE,
        transactional_id: str | None = None,
        is_idempotent: bool = True,
        retried: Collection[ErrorCode] | None = None,
        delivery_for_s: float = DELIVERY_FOR_S,
        batch_bytes: int | None = None,
        on_topic: Callable[[str, int], None] = lambda topic, partitions: None,
        on_acknowledged: Callable[[AcknowledgedBatch], None] = lambda batch: None,
    ) -> None:
        """`is_idempotent`: with acks=all, no batch is stored twice. `retried`: the errors after which a batch is sent
        again; by default all that Kafka calls retriable.

        `on_topic` is called with a topic that was created, and its number of partitions.
        """
        self.acknowledged = 0
        self.count = 0
        # Of an idempotent producer; needed for the first batch.
        self._producer_id: ProducerId | None = None
        self._cluster = cluster
        self._acks, self._codec = acks, codec
        self._transactional_id = transactional_id
        self._is_idempotent = is_idempotent and acks == ACKS_ALL
        self._retried, self._delivery_for_s = retried, delivery_for_s
        self._batch_bytes = BATCH_BYTES if batch_bytes is None else batch_bytes
        self._on_topic, self._on_acknowledged = on_topic, on_acknowledged
        self._batches: dict[TopicPartition, _Batch] = {}
        self._sticky: dict[str, TopicPartition] = {}
        self._partition_counts: dict[str, int] = {}
        self._sequences: dict[TopicPartition, int] = {}
        self._in_flight: list[tuple[BrokerConnection, list[_Batch]]] = []

    def init_producer_id(self, transaction_timeout_ms: int = 60_000) -> None:
        """Get the producer's id. With a transactional id this fences older producers, and aborts what they left open.

        Raises BrokerError, BrokerUnreachable.
        """
        request = InitProducerIdRequest(
            transactional_id=self._transactional_id, transaction_timeout_ms=transaction_timeout_ms
        )
        retries = Retries(self._cluster.on_wait, self._delivery_for_s)
        while True:
            if self._transactional_id is None:
                response = self._cluster.request(request, InitProducerIdResponse)
            else:
                response = self._cluster.coordinated(
                    self._transactional_id, request, InitProducerIdResponse, lambda found: found.error_code, TRANSACTION
                )
            # A broker that has just started gets its producer ids from the controller.
            code = known_error(response.error_code)
            if not code.retriable or not retries.again(f"no producer id: {code.name}"):
                break
        subject = "produce" if self._transactional_id is None else f"transactional id {self._transactional_id}"
        has_none = code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and self._transactional_id is None
        check(
            code,
            subject,
            "the broker gets no producer ids; maybe no broker can write to its disk" if has_none else None,
        )
        self._producer_id = ProducerId(response.producer_id, response.producer_epoch)

    @property
    def identity(self) -> ProducerId:
        """The producer's id and epoch. It must have one."""
        assert self._producer_id is not None
        return self._producer_id

    # Records.

    def add(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Add a record. Its timestamp is in milliseconds, by default the current time.

        A full round of batches is sent, after waiting for the one before it. Raises DeliveryError for a record that
        was added before, UnknownPartition, BrokerError, BrokerUnreachable.
        """
        if timestamp is None:
            timestamp = int(time() * 1000)
        batch = self._batch(self._target(topic, key, partition))
        self.count += 1
        names = tuple([(name.encode(), content) for name, content in headers]) if headers else ()
        batch.records.append((timestamp, key, value, names))
        batch.numbers.append(self.count)
        batch.size += len(key or b"") + len(value or b"") + RECORD_OVERHEAD_BYTES
        if headers:
            batch.size += sum(len(name) + len(content or b"") for name, content in names)
        if batch.size >= self._batch_bytes:
            self._on_full(batch)

    def add_values(self, topic: str, values: Sequence[bytes]) -> None:
        """Add records of values alone. Raises as `add`."""
        timestamp = int(time() * 1000)
        pos = 0
        while pos < len(values):
            batch = self._batch(self._target(topic, None, None))
            # As many as fit if all have the size of the first.
            fitting = (self._batch_bytes - batch.size) // (len(values[pos]) + RECORD_OVERHEAD_BYTES)
            some = values[pos : pos + min(max(fitting, 1), MAX_VALUES)]
            batch.records += [(timestamp, None, value, ()) for value in some]
            batch.numbers += range(self.count + 1, self.count + 1 + len(some))
            batch.size += sum(map(len, some)) + len(some) * RECORD_OVERHEAD_BYTES
            self.count += len(some)
            pos += len(some)
            if batch.size >= self._batch_bytes:
                self._on_full(batch)

    def _batch(self, target: TopicPartition) -> _Batch:
        batch = self._batches.get(target)
        if batch is None:
            batch = self._batches[target] = _Batch(target)
        return batch

    def _on_full(self, batch: _Batch) -> None:
        """Send a round, and use another partition for records without a key."""
        topic, partition = batch.partition
        if self._sticky.get(topic) == batch.partition:
            self._sticky[topic] = TopicPartition(topic, (partition + 1) % self._partition_counts[topic])
        self._send_round()

    def _target(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        """Return the partition of a record: by its key as Kafka does, or the sticky one (KIP-480)."""
        if key is None and partition is None:
            sticky = self._sticky.get(topic)
            if sticky is None:
                count = self.partition_count(topic)
                sticky = self._sticky[topic] = TopicPartition(topic, int.from_bytes(os.urandom(4), "big") % count)
            return sticky
        count = self.partition_count(topic)
        if partition is None:
            partition = (murmur2(key or b"") & 0x7FFFFFFF) % count
        elif partition >= count:
            raise UnknownPartition(f"topic {topic} has no partition {partition}: it has {count}")
        return TopicPartition(topic, partition)

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic, which the broker may create. Raises BrokerError, OSError."""
        count = self._partition_counts.get(topic)
        if count is None:
            self._complete()  # no other request may be in flight
            count = self._partition_counts[topic] = self._find_topic(topic)
        return count

    def _find_topic(self, topic: str) -> int:
        retries, is_new = Retries(self._cluster.on_wait, NEW_TOPIC_FOR_S), False
        while True:
            try:
                count = len(self._cluster.topic(topic).leaders)
            except BrokerError as error:
                if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not is_new:
                    is_new = True
                    if not self._cluster.create_by_metadata(topic):
                        # Kafka has the same error while it creates the topic, and if it creates none.
                        retries.for_s = UNKNOWN_TOPIC_FOR_S
                if not error.code.retriable or not retries.again(error):
                    raise
            else:
                if is_new:
                    self._on_topic(topic, count)
                return count

    # Delivery.

    def flush(self) -> None:
        """Send what was added, and wait until it is acknowledged. Raises as `add`."""
        self._send_round()
        self._complete()

    def _send_round(self) -> None:
        self._complete()
        batches, self._batches = list(self._batches.values()), {}
        if not batches:
            return
        if self._is_idempotent and self._producer_id is None:
            self.init_producer_id()
        self._prepare([batch.partition for batch in batches])
        for batch in batches:
            self._encode(batch)
        failed = self._send(batches)
        if failed:
            self._complete()
            self._deliver(failed)

    def _prepare(self, partitions: Sequence[TopicPartition]) -> None:
        """Called before batches of these partitions are sent."""

    def _encode(self, batch: _Batch) -> None:
        """Encode a batch. It keeps its sequence numbers when it is sent again."""
        id_, epoch, sequence = NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
        if self._producer_id is not None:
            id_, epoch = self._producer_id
            sequence = self._sequences.get(batch.partition, 0)
            self._sequences[batch.partition] = sequence + len(batch.records) & _SEQUENCE_MASK
        batch.encoded = build_batch(
            batch.records,
            codec=self._codec,
            attributes=TRANSACTIONAL if self._transactional_id is not None else 0,
            producer_id=id_,
            producer_epoch=epoch,
            base_sequence=sequence,
        )

    def _send(self, batches: Iterable[_Batch]) -> list[Failed]:
        """Send batches to the leaders of their partitions. Returns those that could not be sent."""
        failed: list[Failed] = []
        by_leader: dict[int, tuple[BrokerConnection, list[_Batch]]] = {}
        for batch in batches:
            try:
                leader = self._cluster.leader(*batch.partition)
                by_leader.setdefault(id(leader), (leader, []))[1].append(batch)
            except (BrokerError, OSError) as error:
                failed.append((batch, error))
        for leader, led in by_leader.values():
            topics: dict[str, list[PartitionProduceData]] = {}
            for batch in led:
                row = PartitionProduceData(index=batch.partition.partition, records=batch.encoded)
                topics.setdefault(batch.partition.topic, []).append(row)
            request = ProduceRequest(
                transactional_id=self._transactional_id,
                acks=self._acks,
                timeout_ms=REQUEST_TIMEOUT_MS,
                topic_data=[TopicProduceData(name=topic, partition_data=rows) for topic, rows in topics.items()],
            )
            try:
                leader.send(request, expect_response=self._acks != 0)
            except OSError as error:
                failed += [(batch, error) for batch in led]
                continue
            if self._acks == 0:
                for batch in led:
                    self._acknowledge(batch, -1)
            else:
                self._in_flight.append((leader, led))
        return failed

    def _complete(self) -> None:
        """Wait for the round in flight, and send again what has failed. Raises as `add`."""
        if failed := self._receive():
            self._deliver(failed)

    def _receive(self) -> list[Failed]:
        """Receive all responses. Returns the batches that may be sent again. Raises DeliveryError for the others."""
        failed: list[Failed] = []
        fatal: DeliveryError | None = None
        in_flight, self._in_flight = self._in_flight, []
        for leader, batches in in_flight:
            try:
                response = leader.receive(ProduceResponse)
            except OSError as error:
                failed += [(batch, error) for batch in batches]
                continue
            rows = {(t.name, row.index): row for t in response.responses for row in t.partition_responses}
            for batch in batches:
                row = rows.get(batch.partition)
                code = known_error(row.error_code if row is not None else ErrorCode.UNKNOWN_SERVER_ERROR)
                if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    self._acknowledge(batch, row.base_offset if row is not None else -1)
                elif self._is_retried(code) or (code in _TOO_LARGE and len(batch.records) > 1):
                    failed.append((batch, BrokerError(code, str(batch.partition), row.error_message if row else None)))
                else:
                    error_ = _delivery_error(batch, code, row)
                    fatal = error_ if fatal is None or error_.number < fatal.number else fatal
        if fatal is not None:
            raise fatal
        return failed

    def _acknowledge(self, batch: _Batch, base_offset: int) -> None:
        self.acknowledged += len(batch.records)
        seconds = monotonic() - batch.began_s
        self._on_acknowledged(AcknowledgedBatch(batch.partition, batch.numbers, base_offset, seconds))

    def _is_retried(self, code: ErrorCode) -> bool:
        return code.retriable if self._retried is None else code in self._retried

    def _deliver(self, failed: list[Failed]) -> None:
        """Send batches again until they are acknowledged. Raises DeliveryError at the deadline."""
        retries = Retries(self._cluster.on_wait, self._delivery_for_s)
        while failed:
            again: list[_Batch] = []
            for batch, error in failed:
                if isinstance(error, BrokerError) and error.code in _TOO_LARGE:
                    self._deliver_halves(batch)
                else:
                    again.append(batch)
            if not again:
                return
            batch, error = failed[0]
            if not retries.again(error):
                if isinstance(error, BrokerError):
                    raise DeliveryError(batch.numbers[0], error.code, error.message)
                raise BrokerUnreachable(str(error))
            if any(isinstance(error, OSError) for _, error in failed):
                self._cluster.reset()
            self._cluster.forget_topics()
            failed = self._send(again) + self._receive()

    def _deliver_halves(self, batch: _Batch) -> None:
        """Deliver a batch that is larger than the topic allows as two; it had no effect, so its sequence is free."""
        if self._producer_id is not None:
            self._sequences[batch.partition] -= len(batch.records)
        middle = len(batch.records) // 2
        for part in (slice(middle), slice(middle, None)):
            half = _Batch(batch.partition)
            half.records, half.numbers = batch.records[part], batch.numbers[part]
            self._encode(half)
            if failed := self._send([half]) + self._receive():
                self._deliver(failed)


def _delivery_error(batch: _Batch, code: ErrorCode, row: PartitionProduceResponse | None) -> DeliveryError:
    """Return the error of the first record that the broker names (KIP-467), or else of the first of the batch."""
    if row is not None and row.record_errors and 0 <= (index := row.record_errors[0].batch_index) < len(batch.numbers):
        reason = row.record_errors[0].batch_index_error_message or row.error_message
        return DeliveryError(batch.numbers[index], code, reason)
    return DeliveryError(batch.numbers[0], code, row.error_message if row is not None else None)

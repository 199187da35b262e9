"""A producer, idempotent or plain: each send is one batch, which is retried until it has an outcome.

A Send ends as OK if the broker acknowledged it, as FAILED if every attempt was rejected by a check that precedes the
append, and as UNKNOWN otherwise.
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from random import Random

from kbroker.simulation.checker.history import History, Operation, Outcome, Send, TopicPartition
from kbroker.simulation.clients.cluster import Cluster
from kbroker.simulation.clients.connection import ConnectionLostError, SimClientConnection
from kbroker.simulation.clients.partition_queue import NO_IDENTITY, Identity, PartitionQueue, QueuedBatch
from kbroker.simulation.clients.records import RecordShape, build_records
from kbroker.simulation.runtime.environment import EPOCH_MS
from protocol.apis import ApiKey
from protocol.client import Response
from protocol.errors import ErrorCode
from protocol.fast.produce import FIRST_TOPIC_ID_VERSION
from protocol.messages.k00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.messages.k22_transactions import InitProducerIdRequest, InitProducerIdResponse

ACKS_NONE, ACKS_ALL = 0, -1
MAX_EPOCH = 2**15 - 1
FIRST_RESUMING_VERSION = 3

SEQUENCE_BROKEN = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
# Errors that precede the append. Other errors may follow it: the topic was deleted, the disk failed, or the
# leader changed while the batch waited for its acknowledgement.
WITHOUT_EFFECT = SEQUENCE_BROKEN | {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_REQUIRED_ACKS,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
# Errors after which the producer looks up the leader and the topic id again.
LEADER_CHANGED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


@dataclass(slots=True)
class ProducerConfig:
    """Settings of a producer.

    `promises`: whether an acknowledgement means that the batch is not lost. `delivery_timeout_s`: no attempt begins
    later than this after the send. `previous`: the producer id and epoch from before a restart, sent with
    InitProducerId (KIP-360).
    """

    idempotent: bool = True
    acks: int = ACKS_ALL
    promises: bool = True
    max_in_flight: int = 5
    delivery_timeout_s: float = 30.0
    broker_timeout_ms: int = 5_000
    shape: RecordShape = field(default_factory=RecordShape)
    previous: Identity = NO_IDENTITY


class Producer:
    """`process` is the producer's unique name in the history, which numbers sends by it."""

    def __init__(
        self, cluster: Cluster, history: History, process: str, random: Random, config: ProducerConfig | None = None
    ) -> None:
        self.config = config or ProducerConfig()
        assert self.config.acks == ACKS_ALL or not self.config.idempotent
        self.cluster = cluster
        self.identity: Identity = NO_IDENTITY
        self._transactional_id: str | None = None
        self._history = history
        self._process = process
        self._random = random
        self._loop = cluster.loop
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._init_task: asyncio.Task[None] | None = None
        self._scheduled = False
        self._closed = False

    def send(self, tp: TopicPartition, values: tuple[int, ...]) -> "asyncio.Future[Operation]":
        """Send one batch. The future returns the ended operation; it never fails."""
        return self._send(
            Send(tp, values, 0, self.config.idempotent, self.config.acks if self.config.promises else ACKS_NONE)
        )

    def _send(self, action: Send) -> "asyncio.Future[Operation]":
        tp, values = action.tp, action.values
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = self._new_queue(tp)
        action.order = order = queue.next_order()
        operation = self._history.begin(self._process, action)
        now = self._loop.time()
        content = build_records(values, EPOCH_MS + int(now * 1000), self.config.shape, self._random)
        codec = self._random.choice(self.config.shape.codecs)
        done: asyncio.Future[Operation] = self._loop.create_future()
        deadline = now + self.config.delivery_timeout_s
        batch = QueuedBatch(operation, tp, order, content, codec, deadline, done)
        queue.pending.append(batch)
        if self._closed:
            self._complete(queue, batch, Outcome.FAILED, "the producer is closed")
        self._schedule_send()
        return done

    async def flush(self) -> None:
        """Wait until every sent batch has an outcome."""
        waiting = [batch.done for queue in self._queues.values() for batch in queue.pending]
        if waiting:
            await asyncio.wait(waiting)

    def close(self) -> None:
        """Stop immediately. Batches in flight end as UNKNOWN, the others as FAILED or UNKNOWN."""
        self._closed = True
        for task in (self._init_task, *(queue.leader_lookup for queue in self._queues.values())):
            if task is not None:
                task.cancel()
        for queue in self._queues.values():
            for batch in list(queue.pending):
                batch.maybe_applied = batch.maybe_applied or batch.in_flight
                self._give_up(queue, batch, "the producer was closed")
        self.cluster.close()

    # Sending.

    def _new_queue(self, tp: TopicPartition) -> PartitionQueue:
        return PartitionQueue(tp, self.config.idempotent, self.config.max_in_flight)

    def _schedule_send(self) -> None:
        """Send in the next iteration of the event loop, so that sends of this iteration share requests."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._send_ready)

    def _send_ready(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        if self.config.idempotent and self.identity == NO_IDENTITY:
            if self._init_task is None:
                self._init_task = self._loop.create_task(self._init_producer_id())
            return
        while requests := self._requests():
            for connection, batches in requests.items():
                self._send_request(connection, batches)

    def _requests(self) -> dict[SimClientConnection, list[QueuedBatch]]:
        """Return the batches to send now by connection, at most one for each partition."""
        requests: dict[SimClientConnection, list[QueuedBatch]] = {}
        for queue in self._queues.values():
            if not queue.pending or (batch := queue.next_sendable(self.identity)) is None:
                continue
            if not self._may_send(queue):
                continue
            connection = self.cluster.open_leader_connection(queue.tp)
            if connection is None:
                self._start_leader_lookup(queue)
            else:
                requests.setdefault(connection, []).append(batch)
        return requests

    def _may_send(self, queue: PartitionQueue) -> bool:
        """Return whether batches may be sent to this partition now."""
        return True

    def _version(self, connection: SimClientConnection) -> int:
        return connection.version(ApiKey.PRODUCE)

    def _send_request(self, connection: SimClientConnection, batches: list[QueuedBatch]) -> None:
        version = self._version(connection)
        topics: dict[str, TopicProduceData] = {}
        for batch in batches:
            name, index = batch.tp
            data = self._queues[batch.tp].prepare(batch)
            batch.attempted = self._history.step
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = TopicProduceData(name=name, topic_id=self.cluster.topic_ids.get(name, bytes(16)))
            topic.partition_data.append(PartitionProduceData(index=index, records=data))
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self.config.acks,
            timeout_ms=self.config.broker_timeout_ms,
            topic_data=list(topics.values()),
        )

        if self.config.acks == ACKS_NONE:
            connection.send(request, version, None)
            self._end_unacknowledged(batches)
        else:
            connection.send(request, version, partial(self._on_response, batches))

    # Responses.

    def _end_unacknowledged(self, batches: list[QueuedBatch]) -> None:
        for batch in batches:
            queue = self._queues[batch.tp]
            queue.mark_returned(batch)
            self._complete(queue, batch, Outcome.UNKNOWN, "no acknowledgement was asked for")

    def _on_response(self, batches: list[QueuedBatch], response: Response | None) -> None:
        results: dict[TopicPartition, PartitionProduceResponse] = {}
        if response is not None:
            for topic in response.decode(ProduceResponse).responses:
                named = response.version < FIRST_TOPIC_ID_VERSION
                name = topic.name if named else self.cluster.topic_names.get(topic.topic_id, "")
                for result in topic.partition_responses:
                    results[name, result.index] = result
        for batch in batches:
            queue = self._queues[batch.tp]
            queue.mark_returned(batch)
            if batch in queue.pending:
                self._handle_result(queue, batch, results.get(batch.tp))
            if queue.is_sequence_broken and not queue.in_flight:
                self._restart_sequence(queue)
        self._schedule_send()

    def _handle_result(
        self, queue: PartitionQueue, batch: QueuedBatch, result: PartitionProduceResponse | None
    ) -> None:
        if result is None:
            batch.maybe_applied = True
            self._retry(queue, batch, "no response")
            return
        code = ErrorCode(result.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            action = batch.operation.action
            assert isinstance(action, Send)
            # The base offset of a duplicate is unknown if the broker no longer remembers the batch.
            action.base_offset = result.base_offset if code is ErrorCode.NONE and result.base_offset >= 0 else None
            action.attempted = batch.attempted
            queue.mark_acknowledged(batch)
            self._complete(queue, batch, Outcome.OK, "" if code is ErrorCode.NONE else code.name)
            return
        batch.maybe_applied = batch.maybe_applied or code not in WITHOUT_EFFECT
        if code in LEADER_CHANGED:
            self.cluster.forget_leader(queue.tp)
        if code in SEQUENCE_BROKEN and self.config.idempotent:
            # After another batch in flight it is only out of order, not broken.
            if batch is queue.pending[0] or code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                queue.is_sequence_broken = True
            self._retry(queue, batch, code.name)
        elif code.retriable:
            self._retry(queue, batch, code.name)
        else:
            self._give_up(queue, batch, code.name)

    def _retry(self, queue: PartitionQueue, batch: QueuedBatch, reason: str) -> None:
        if self._closed or self._loop.time() >= batch.deadline:
            self._give_up(queue, batch, reason)
        elif not queue.is_backing_off:
            queue.is_backing_off = True
            self._loop.call_later(self._random.uniform(0.01, 0.1), self._end_backoff, queue)

    def _end_backoff(self, queue: PartitionQueue) -> None:
        queue.is_backing_off = False
        self._schedule_send()

    def _give_up(self, queue: PartitionQueue, batch: QueuedBatch, reason: str) -> None:
        queue.mark_given_up(batch)
        self._complete(queue, batch, Outcome.UNKNOWN if batch.maybe_applied else Outcome.FAILED, reason)

    def _complete(self, queue: PartitionQueue, batch: QueuedBatch, outcome: Outcome, detail: str) -> None:
        queue.pending.remove(batch)
        self._history.end(batch.operation, outcome, detail)
        if not batch.done.done():
            batch.done.set_result(batch.operation)

    def _restart_sequence(self, queue: PartitionQueue) -> None:
        """Continue with the next epoch. The sequence is broken, and no batch of the queue is in flight."""
        for batch in queue.unrepeatable_batches():
            self._give_up(queue, batch, "the sequence is broken")
        producer_id, epoch = self.identity
        if queue.identity == self.identity:
            assert epoch < MAX_EPOCH, "a producer's epochs are used up"
            self.identity = (producer_id, epoch + 1)
        queue.restart(self.identity)

    # Lookups and timeouts.

    def _start_leader_lookup(self, queue: PartitionQueue) -> None:
        if queue.leader_lookup is None:
            queue.leader_lookup = self._loop.create_task(self._find_leader(queue))

    async def _find_leader(self, queue: PartitionQueue) -> None:
        try:
            while queue.pending:
                try:
                    await self.cluster.leader(queue.tp)
                    break
                except OSError as error:
                    self._expire(queue, type(error).__name__)
                await self.cluster.backoff()
        finally:
            queue.leader_lookup = None
        self._schedule_send()

    def _expire(self, queue: PartitionQueue, reason: str) -> None:
        now = self._loop.time()
        for batch in [batch for batch in queue.pending if not batch.in_flight and batch.deadline <= now]:
            self._give_up(queue, batch, reason)
        if queue.is_sequence_broken and not queue.in_flight:
            self._restart_sequence(queue)

    async def _init_producer_id(self) -> None:
        """Initialize the producer id."""
        while True:
            try:
                self.identity = await self._request_producer_id()
                break
            except OSError as error:
                for queue in self._queues.values():
                    self._expire(queue, type(error).__name__)
            await self.cluster.backoff()
        self._schedule_send()

    async def _request_producer_id(self) -> Identity:
        connection = await self.cluster.any_node()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        if connection.version(ApiKey.INIT_PRODUCER_ID) >= FIRST_RESUMING_VERSION:
            request.producer_id, request.producer_epoch = self.config.previous
        response = await connection.request(request, InitProducerIdResponse)
        if response.error_code:
            raise ConnectionLostError(ErrorCode(response.error_code).name)
        return response.producer_id, response.producer_epoch

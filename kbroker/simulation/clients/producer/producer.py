"""A producer: idempotent or plain, one batch a send, repeated until it has an outcome.

A Send ends as OK when the broker has acknowledged it; as FAILED only if each attempt was refused for something that
is checked before anything is written; else as UNKNOWN.
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from random import Random

from kbroker.simulation.checker.history import History, Operation, Outcome, Place, Send
from kbroker.simulation.clients.connections.cluster import Cluster
from kbroker.simulation.clients.connections.connection import ConnectionLostError, SimClientConnection
from kbroker.simulation.clients.producer.partition_queue import NO_IDENTITY, Identity, Lane, QueuedBatch
from kbroker.simulation.clients.workloads.values import Shape, records
from kbroker.simulation.runtime.clock import EPOCH_MS
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
from protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse

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
# Refused before anything was written. Other errors may come after the append too: the topic was deleted, the disk
# failed, or the leader changed while the batch waited for its acknowledgement.
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
# The leader is another one, or the topic.
STALE = frozenset(
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
    """`delivery_timeout_s`: no attempt begins later than this after the send. `previous`: the identity that this
    producer had before it was started anew, which the broker is told (KIP-360)."""

    idempotent: bool = True
    acks: int = ACKS_ALL
    max_in_flight: int = 5
    delivery_timeout_s: float = 30.0
    broker_timeout_ms: int = 5_000
    shape: Shape = field(default_factory=Shape)
    previous: Identity = NO_IDENTITY


class Producer:
    """`process` is its name in the history: another producer needs another one, for orders are counted by it."""

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
        self._lanes: dict[Place, Lane] = {}
        self._beginning: asyncio.Task[None] | None = None
        self._scheduled = False
        self._closed = False

    def send(self, place: Place, values: tuple[int, ...]) -> "asyncio.Future[Operation]":
        """Send one batch. The future gives the ended operation; it never fails."""
        return self._send(Send(place, values, 0, self.config.idempotent, self.config.acks))

    def _send(self, action: Send) -> "asyncio.Future[Operation]":
        place, values = action.place, action.values
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = self._new_lane(place)
        action.order = order = lane.next_order()
        operation = self._history.begin(self._process, action)
        now = self._loop.time()
        content = records(values, EPOCH_MS + int(now * 1000), self.config.shape, self._random)
        codec = self._random.choice(self.config.shape.codecs)
        done: asyncio.Future[Operation] = self._loop.create_future()
        deadline = now + self.config.delivery_timeout_s
        batch = QueuedBatch(operation, place, order, content, codec, deadline, done)
        lane.window.append(batch)
        if self._closed:
            self._end(lane, batch, Outcome.FAILED, "the producer is closed")
        self._go_on()
        return done

    async def flush(self) -> None:
        """Wait until all that was sent has an outcome."""
        waiting = [batch.done for lane in self._lanes.values() for batch in lane.window]
        if waiting:
            await asyncio.wait(waiting)

    def close(self) -> None:
        """Stop here and now: what has no outcome gets none any more."""
        self._closed = True
        for task in (self._beginning, *(lane.finding for lane in self._lanes.values())):
            if task is not None:
                task.cancel()
        for lane in self._lanes.values():
            for batch in list(lane.window):
                batch.undecided = batch.undecided or batch.in_flight
                self._give_up(lane, batch, "the producer was closed")
        self.cluster.close()

    # Sending.

    def _new_lane(self, place: Place) -> Lane:
        return Lane(place, self.config.idempotent, self.config.max_in_flight)

    def _go_on(self) -> None:
        """In the next turn, so that sends of this one share requests."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._send_ready)

    def _send_ready(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        if self.config.idempotent and self.identity == NO_IDENTITY:
            if self._beginning is None:
                self._beginning = self._loop.create_task(self._begin())
            return
        while requests := self._requests():
            for connection, batches in requests.items():
                self._post(connection, batches)

    def _requests(self) -> dict[SimClientConnection, list[QueuedBatch]]:
        """At most one batch of each partition, by the connection on which it goes."""
        requests: dict[SimClientConnection, list[QueuedBatch]] = {}
        for lane in self._lanes.values():
            if not lane.window or (batch := lane.next(self.identity)) is None:
                continue
            if not self._may_go(lane):
                continue
            connection = self.cluster.leader_now(lane.place)
            if connection is None:
                self._find(lane)
            else:
                requests.setdefault(connection, []).append(batch)
        return requests

    def _may_go(self, lane: Lane) -> bool:
        """Whether batches may be sent to this partition now."""
        return True

    def _version(self, connection: SimClientConnection) -> int:
        return connection.version(ApiKey.PRODUCE)

    def _post(self, connection: SimClientConnection, batches: list[QueuedBatch]) -> None:
        version = self._version(connection)
        topics: dict[str, TopicProduceData] = {}
        for batch in batches:
            name, index = batch.place
            data = self._lanes[batch.place].prepare(batch)
            batch.attempted = self._history.step
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = TopicProduceData(name=name, topic_id=self.cluster.ids.get(name, bytes(16)))
            topic.partition_data.append(PartitionProduceData(index=index, records=data))
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self.config.acks,
            timeout_ms=self.config.broker_timeout_ms,
            topic_data=list(topics.values()),
        )

        if self.config.acks == ACKS_NONE:
            connection.send(request, version, None)
            self._not_answered(batches)
        else:
            connection.send(request, version, partial(self._on_response, batches))

    # Answers.

    def _not_answered(self, batches: list[QueuedBatch]) -> None:
        for batch in batches:
            lane = self._lanes[batch.place]
            lane.returned(batch)
            self._end(lane, batch, Outcome.UNKNOWN, "no acknowledgement was asked for")

    def _on_response(self, batches: list[QueuedBatch], response: Response | None) -> None:
        results: dict[Place, PartitionProduceResponse] = {}
        if response is not None:
            for topic in response.decode(ProduceResponse).responses:
                named = response.version < FIRST_TOPIC_ID_VERSION
                name = topic.name if named else self.cluster.names.get(topic.topic_id, "")
                for result in topic.partition_responses:
                    results[name, result.index] = result
        for batch in batches:
            lane = self._lanes[batch.place]
            lane.returned(batch)
            if batch in lane.window:
                self._heed(lane, batch, results.get(batch.place))
            if lane.broken and not lane.in_flight:
                self._mend(lane)
        self._go_on()

    def _heed(self, lane: Lane, batch: QueuedBatch, result: PartitionProduceResponse | None) -> None:
        if result is None:
            batch.undecided = True
            self._try_again(lane, batch, "no answer")
            return
        code = ErrorCode(result.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            action = batch.operation.action
            assert isinstance(action, Send)
            # Of a duplicate that has left the broker's memory it does not say where it is.
            action.base_offset = result.base_offset if code is ErrorCode.NONE and result.base_offset >= 0 else None
            action.attempted = batch.attempted
            lane.acknowledged(batch)
            self._end(lane, batch, Outcome.OK, "" if code is ErrorCode.NONE else code.name)
            return
        batch.undecided = batch.undecided or code not in WITHOUT_EFFECT
        if code in STALE:
            self.cluster.forget(lane.place)
        if code in SEQUENCE_BROKEN and self.config.idempotent:
            # Behind another one that is under way it is only early.
            if batch is lane.window[0] or code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                lane.broken = True
            self._try_again(lane, batch, code.name)
        elif code.retriable:
            self._try_again(lane, batch, code.name)
        else:
            self._give_up(lane, batch, code.name)

    def _try_again(self, lane: Lane, batch: QueuedBatch, reason: str) -> None:
        if self._closed or self._loop.time() >= batch.deadline:
            self._give_up(lane, batch, reason)
        elif not lane.resting:
            lane.resting = True
            self._loop.call_later(self._random.uniform(0.01, 0.1), self._rested, lane)

    def _rested(self, lane: Lane) -> None:
        lane.resting = False
        self._go_on()

    def _give_up(self, lane: Lane, batch: QueuedBatch, reason: str) -> None:
        lane.given_up(batch)
        self._end(lane, batch, Outcome.UNKNOWN if batch.undecided else Outcome.FAILED, reason)

    def _end(self, lane: Lane, batch: QueuedBatch, outcome: Outcome, detail: str) -> None:
        lane.window.remove(batch)
        self._history.end(batch.operation, outcome, detail)
        if not batch.done.done():
            batch.done.set_result(batch.operation)

    def _mend(self, lane: Lane) -> None:
        """Nothing of a lane whose sequence is broken is under way any more: begin again with another epoch."""
        for batch in lane.cannot_repeat():
            self._give_up(lane, batch, "the sequence is broken")
        producer_id, epoch = self.identity
        if lane.identity == self.identity:
            assert epoch < MAX_EPOCH, "a producer's epochs are used up"
            self.identity = (producer_id, epoch + 1)
        lane.restart(self.identity)

    # What takes its time.

    def _find(self, lane: Lane) -> None:
        if lane.finding is None:
            lane.finding = self._loop.create_task(self._find_leader(lane))

    async def _find_leader(self, lane: Lane) -> None:
        try:
            while lane.window:
                try:
                    await self.cluster.leader(lane.place)
                    break
                except OSError as error:
                    self._expire(lane, type(error).__name__)
                await self.cluster.rest()
        finally:
            lane.finding = None
        self._go_on()

    def _expire(self, lane: Lane, reason: str) -> None:
        now = self._loop.time()
        for batch in [batch for batch in lane.window if not batch.in_flight and batch.deadline <= now]:
            self._give_up(lane, batch, reason)
        if lane.broken and not lane.in_flight:
            self._mend(lane)

    async def _begin(self) -> None:
        """Get a producer id."""
        while True:
            try:
                self.identity = await self._ask_identity()
                break
            except OSError as error:
                for lane in self._lanes.values():
                    self._expire(lane, type(error).__name__)
            await self.cluster.rest()
        self._go_on()

    async def _ask_identity(self) -> Identity:
        connection = await self.cluster.any()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        if connection.version(ApiKey.INIT_PRODUCER_ID) >= FIRST_RESUMING_VERSION:
            request.producer_id, request.producer_epoch = self.config.previous
        answer = await connection.request(request, InitProducerIdResponse)
        if answer.error_code:
            raise ConnectionLostError(ErrorCode(answer.error_code).name)
        return answer.producer_id, answer.producer_epoch

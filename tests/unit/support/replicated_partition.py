"""A partition with three replicas on a simulated broker, which leads it. A test plays its followers and controller."""

import asyncio
from collections.abc import Callable
from typing import Any

from kbroker.metadata.image import BrokerRegistration, MetadataDelta, PartitionChange, PartitionRegistration
from kbroker.replica.fetch.fetch_session import DelayedFetch
from protocol.errors import ErrorCode
from protocol.fast.fetch import FetchRequest, FetchResponse, FetchResult
from protocol.messages.k56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
)
from protocol.records.batch import iter_headers
from tests.unit.support.simulated_broker import Machine

LEADER, REPLICAS = 1, [1, 2, 3]
LAG_MS = 30_000
LONG_MS = 3_600_000
# The time from a change to the broker's image.
IMAGE_S = 0.01


class Controller:
    """`requests` are those received. A request waits for `answer`, or is accepted if `accepts`.

    `on_change` is called with each ISR that it has written, and the partition epoch.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_change: Callable[[list[int], int], None]) -> None:
        self.loop = loop
        self.on_change = on_change
        self.accepts = True
        self.requests: list[AlterPartitionRequest] = []
        self.waiting: list[asyncio.Future[ErrorCode]] = []

    async def send(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.requests.append(request)
        code = ErrorCode.NONE
        if not self.accepts:
            answer: asyncio.Future[ErrorCode] = self.loop.create_future()
            self.waiting.append(answer)
            code = await answer
        (topic,) = request.topics
        (partition,) = topic.partitions
        result = AlterPartitionResponsePartition(partition_index=partition.partition_index, error_code=code)
        if not code:
            result.leader_id, result.leader_epoch = LEADER, partition.leader_epoch
            result.isr = [member.broker_id for member in partition.new_isr_with_epochs]
            result.partition_epoch = partition.partition_epoch + 1
            self.loop.call_later(IMAGE_S, self.on_change, result.isr, result.partition_epoch)
        topics = [AlterPartitionResponseTopic(topic_id=topic.topic_id, partitions=[result])]
        return AlterPartitionResponse(topics=topics)

    def answer(self, result: ErrorCode | Exception = ErrorCode.NONE) -> None:
        """Answer the oldest waiting request with the error code of its partition, or let it fail."""
        waiting = self.waiting.pop(0)
        if isinstance(result, Exception):
            waiting.set_exception(result)
        else:
            waiting.set_result(result)

    @property
    def proposed(self) -> list[list[tuple[int, int]]]:
        """The proposed ISRs, as (broker id, broker epoch)."""
        return [
            [(member.broker_id, member.broker_epoch) for member in request.topics[0].partitions[0].new_isr_with_epochs]
            for request in self.requests
        ]


class ReplicatedPartition:
    """Partition 0 of topic "t" with the replicas 1, 2 and 3. Broker N has the broker epoch 100 + N."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.services = m.broker.services
        self.partition = m.partition("t")
        self.controller = Controller(m.loop, self._learn)
        self.partition_epoch = 10
        self.services.replicas.isr_manager.start(self.controller.send, lambda: 101, lambda: LAG_MS)
        for broker_id in REPLICAS[1:]:
            self.register(broker_id)
        self._sessions: dict[int, tuple[int, int]] = {}

    # What the metadata image says.

    def register(self, broker_id: int, epoch: int | None = None) -> None:
        """Unfence a broker."""
        registration = BrokerRegistration(broker_id, f"b{broker_id}", 9092, None, epoch or 100 + broker_id)
        self._apply({broker_id: registration})

    def fence(self, broker_id: int) -> None:
        self._apply({broker_id: None})

    def _apply(self, brokers: dict[int, BrokerRegistration | None]) -> None:
        delta = MetadataDelta(brokers=brokers)
        self.services.metadata.apply(delta)
        self.services.replicas.isr_manager.on_delta(delta)

    def _learn(self, isr: list[int], partition_epoch: int) -> None:
        """Let the image have what the controller has written."""
        self.partition_epoch = partition_epoch
        epoch, tp = self.partition.leader_epoch, self.partition.tp
        registration = PartitionRegistration(LEADER, epoch, REPLICAS, isr, partition_epoch=partition_epoch)
        self.partition.apply_registration(registration, LEADER, self.m.clock.mono_ms())
        change = PartitionChange(tp, self.partition.topic_id, None, registration)
        self.services.replicas.isr_manager.on_delta(MetadataDelta(partitions=[change]))

    def lead(self, isr: list[int], epoch: int | None = None, replicas: list[int] = REPLICAS) -> None:
        """Lead a new leader epoch, or, in the current one, take an ISR from the image."""
        self.partition_epoch += 1
        current = self.partition.leader_epoch
        registration = PartitionRegistration(
            LEADER, current + 1 if epoch is None else epoch, replicas, isr, partition_epoch=self.partition_epoch
        )
        self.partition.apply_registration(registration, LEADER, self.m.clock.mono_ms())

    def follow(self, leader: int, epoch: int | None = None) -> None:
        self.partition_epoch += 1
        current = self.partition.leader_epoch
        registration = PartitionRegistration(
            leader, current + 1 if epoch is None else epoch, REPLICAS, REPLICAS, partition_epoch=self.partition_epoch
        )
        self.partition.apply_registration(registration, LEADER, self.m.clock.mono_ms())

    # What followers do.

    def fetch(
        self, replica: int, offset: int | None, *, wait_ms: int = 0, broker_epoch: int | None = None, **fields: Any
    ) -> FetchResponse | DelayedFetch:
        """Fetch as a follower, in an incremental session. Without an offset the session's positions stay."""
        session_id, session_epoch = self._sessions.get(replica, (0, 0))
        leader_epoch = fields.get("leader_epoch", self.partition.leader_epoch)
        position = (0, leader_epoch, offset or 0, fields.get("last_epoch", -1), 1 << 20, fields.get("log_start", 0))
        request = FetchRequest(
            replica, wait_ms, 1, 1 << 24, 0, session_id, session_epoch,
            [] if offset is None else [(self.partition.topic_id, [position])], [], "",
            100 + replica if broker_epoch is None else broker_epoch,
        )  # fmt: skip
        response = self.services.fetching.fetch(request, True, "PLAINTEXT")
        session_id = response.session.id if isinstance(response, DelayedFetch) else response.session_id
        self._sessions[replica] = session_id, session_epoch + 1
        return response

    def claim(self, replica: int, offset: int, **fields: Any) -> FetchResult | None:
        """Fetch from an offset without waiting. Returns what the response has for the partition."""
        response = self.fetch(replica, offset, **fields)
        assert isinstance(response, FetchResponse)
        return only(response)

    @property
    def isr(self) -> list[int]:
        return self.partition.state.isr

    @property
    def high_watermark(self) -> int:
        return self.partition.high_watermark


def only(response: FetchResponse) -> FetchResult | None:
    """Return the only partition of a response; None for an empty response."""
    results = [result for _, results in response.topics for result in results]
    assert response.error_code == 0
    assert len(results) <= 1
    return results[0] if results else None


def offsets(result: FetchResult | None) -> list[int]:
    """Return the base offsets of the batches."""
    assert result is not None
    assert result.error_code == 0
    return [header.base_offset for _, header in iter_headers(bytes(result.records))]  # type: ignore[arg-type]

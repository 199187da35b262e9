"""A replica fetcher with partitions and a leader that a test controls."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kbroker.common import Buffer, KafkaError, TopicPartition
from kbroker.config import BrokerConfig
from kbroker.metadata.image import PartitionRegistration
from kbroker.replica.fetcher.replica_fetcher import ReplicaFetcherManager
from kbroker.simulation.runtime.environment import SimClock
from kbroker.simulation.runtime.loop import SimLoop
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.log.log_health import LogHealth
from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from protocol.records.batch import BatchHeader
from protocol.schema.codec import decode, encode
from tests.unit.support.memory_disk import make_environment

NODE, LEADER, EPOCH = 2, 1, 5
BROKER_EPOCH = 77


class FakeLog:
    def __init__(self, end: int) -> None:
        self.health = LogHealth(TopicPartition("t", 0))
        self.log_start_offset = 0
        self.log_end_offset = end
        self.recovery_point = end
        self.epochs = LeaderEpochCache([(3, 0)] if end else [])
        # If it is set, the write of the log start offset waits for it.
        self.stored: asyncio.Future[None] | None = None

    async def store_log_start(self) -> None:
        if self.stored is not None:
            await self.stored


class FakePartition:
    """A follower whose log is a list of offsets."""

    def __init__(self, index: int = 0, end: int = 0) -> None:
        self.tp = TopicPartition("t", index)
        self.topic_id = bytes(15) + b"\1"
        self.log: Any = FakeLog(end)
        self.leader_epoch = EPOCH
        self.flush_before_ack = False
        self.is_closed = self.is_follower_throttled = False
        self.high_watermark = 0
        self.truncations: list[int] = []
        self.append_error: KafkaError | None = None
        self.truncating: asyncio.Future[None] | None = None
        self.sync_callbacks: deque[Callable[[ErrorCode], None]] = deque()

    def append_as_follower(
        self, records: Buffer, headers: Sequence[BatchHeader], high_watermark: int, log_start: int, now_ms: int
    ) -> int:
        if self.append_error is not None:
            raise self.append_error
        for header in headers:
            self.log.epochs.assign(header.leader_epoch, header.base_offset)
            self.log.log_end_offset = header.next_offset
        self.log.log_start_offset = max(self.log.log_start_offset, log_start)
        self.high_watermark = min(high_watermark, self.log.log_end_offset)
        return self.log.log_end_offset

    async def follower_truncate(self, offset: int) -> None:
        if self.truncating is not None:
            await self.truncating
        self.truncations.append(offset)
        self.log.log_end_offset = offset
        self.log.epochs.truncate_from_end(offset)

    async def follower_restart_at(self, offset: int) -> None:
        await self.follower_truncate(offset)
        self.log.log_start_offset = self.log.log_end_offset = offset

    def on_synced(self, offset: int, callback: Callable[[ErrorCode], None]) -> None:
        self.sync_callbacks.append(callback)


class FakeLeader:
    """Keeps each request until the test responds. `offsets`: the start and end of its log, for ListOffsets."""

    def __init__(self) -> None:
        self.requests: deque[tuple[FetchRequest, asyncio.Future[memoryview]]] = deque()
        self.offsets = (0, 0)
        self.session_id = 9

    async def fetch(self, broker_id: int, version: int, body: Sequence[Buffer], timeout_ms: int) -> memoryview:
        assert broker_id == LEADER
        response: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self.requests.append((decode(FetchRequest, b"".join(body), version), response))
        return await response

    async def list_offsets(self, broker_id: int, request: ListOffsetsRequest, timeout_ms: int) -> ListOffsetsResponse:
        asked = request.topics[0].partitions[0]
        assert (request.replica_id, asked.current_leader_epoch) == (NODE, EPOCH)
        offset = self.offsets[0] if asked.timestamp == -2 else self.offsets[1]
        row = ListOffsetsPartitionResponse(partition_index=asked.partition_index, offset=offset)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[row])])

    async def request(self) -> FetchRequest:
        """Return the next request when it arrives."""
        for _ in range(2000):
            if self.requests:
                return self.requests[0][0]
            await asyncio.sleep(0.001)
        raise AssertionError("no request")

    def respond(self, *partitions: PartitionData, error_code: int = 0, session_id: int | None = None) -> None:
        _, future = self.requests.popleft()
        topic = FetchableTopicResponse(topic_id=bytes(15) + b"\1", partitions=list(partitions))
        response = FetchResponse(
            session_id=self.session_id if session_id is None else session_id, error_code=error_code, responses=[topic]
        )
        future.set_result(memoryview(encode(response, 18)))

    def fail(self) -> None:
        self.requests.popleft()[1].set_exception(KafkaError(ErrorCode.NETWORK_EXCEPTION))


class Lab:
    def __init__(self) -> None:
        self.environment = make_environment()
        loop = self.environment.loop
        assert isinstance(loop, SimLoop)
        self.environment.clock = SimClock(loop)
        self.leader = FakeLeader()
        config = BrokerConfig.load({"replica.fetch.backoff.ms": "200"})
        self.manager = ReplicaFetcherManager(self.environment, NODE, lambda: BROKER_EPOCH, self.leader, lambda: config)

    def follow(self, partition: FakePartition, epoch: int = EPOCH, leader: int = LEADER) -> None:
        partition.leader_epoch = epoch
        self.manager.update(partition, PartitionRegistration(leader, epoch, [1, 2], [1, 2]))

    async def followed(self, partition: FakePartition) -> PartitionData:
        """Follow a partition, and open the session. Returns after the second request was sent."""
        self.follow(partition)
        await self.leader.request()
        self.leader.respond(records_of(partition))
        await self.leader.request()
        return records_of(partition)


def records_of(partition: FakePartition, *batches: bytes, high_watermark: int = 0, **fields: Any) -> PartitionData:
    return PartitionData(
        partition_index=partition.tp.partition, records=b"".join(batches), high_watermark=high_watermark,
        log_start_offset=0, **fields,
    )  # fmt: skip


def rows(request: FetchRequest) -> list[tuple[int, int, int, int]]:
    return [
        (row.partition, row.current_leader_epoch, row.fetch_offset, row.last_fetched_epoch)
        for topic in request.topics
        for row in topic.partitions
    ]


def claims(leader: FakeLeader) -> list[int]:
    """Return the log start offsets in the waiting requests."""
    return [
        row.log_start_offset for request, *_ in leader.requests for topic in request.topics for row in topic.partitions
    ]


def fetcher_test(test: Any) -> Any:
    def run_test() -> None:
        loop = SimLoop(1)

        async def run() -> None:
            lab = Lab()
            await test(lab)
            await lab.manager.stop()
            await asyncio.sleep(1)
            tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
            assert not tasks, tasks

        try:
            loop.run_until_complete(run())
        finally:
            loop.close()

    run_test.__name__ = test.__name__
    return run_test

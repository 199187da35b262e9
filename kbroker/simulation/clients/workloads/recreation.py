"""A topic that is deleted while it is written and read, and created again under the same name.

All requests for the topic name it by its id. A request that arrives late, after the topic was deleted, must not have an
effect on the next topic of that name. The clients keep no history for the checker: they check each response themselves,
with the rules of `Incarnation`.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random

from kbroker.simulation.checker.history import History
from kbroker.simulation.clients.admin import BROKER_TIMEOUT_MS, Admin
from kbroker.simulation.clients.cluster import NO_EPOCH, Cluster, RefusedError
from kbroker.simulation.clients.connection import SimClientConnection
from kbroker.simulation.clients.group_offsets import GroupOffsets
from kbroker.simulation.clients.records import RecordShape, ValueSource, build_records, read_batches
from kbroker.simulation.clients.workloads.context import WorkloadContext
from kbroker.simulation.runtime.environment import EPOCH_MS
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from protocol.records.batch import build_batch

TOPIC = "recreated"
GROUP = "recreated-offsets"
PRODUCERS = 2
# Not values of the other clients.
FIRST_VALUE = 1_000_000_000
# While faults happen, a check that takes longer is dropped.
CHECK_TIMEOUT_S = 2.0


# The committed offset of a partition without one.
NO_OFFSET = -1


async def send_batch(
    connection: SimClientConnection, topic_id: bytes, index: int, values: Sequence[int], random: Random
) -> PartitionProduceResponse:
    """Send one batch with acks=all, without retries. Raises OSError."""
    at_ms = EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)
    batch = build_batch(build_records(values, at_ms, RecordShape(), random))
    topic = TopicProduceData(topic_id=topic_id, partition_data=[PartitionProduceData(index=index, records=batch)])
    request = ProduceRequest(acks=-1, timeout_ms=BROKER_TIMEOUT_MS, topic_data=[topic])
    return (await connection.request(request, ProduceResponse)).responses[0].partition_responses[0]


class BrokenDeletion(AssertionError):
    """A deletion that was acknowledged has no effect, or records of the topic that came after it are wrong."""


class Incarnation:
    """What clients know of a topic id, whose history ends with its deletion. Methods raise BrokenDeletion.

    `after_deletion`: whether the request was sent after the deletion had been acknowledged.
    """

    def __init__(self, topic_id: bytes) -> None:
        self.topic_id = topic_id
        self.is_deleted = False
        self._sent: set[int] = set()
        # By offset: the values that were acknowledged, and these and the ones that were read.
        self._acknowledged: dict[int, int] = {}
        self._known: dict[int, int] = {}
        self._committed: set[int] = {NO_OFFSET}

    @property
    def acknowledged(self) -> Mapping[int, int]:
        """A copy of the acknowledged values by offset."""
        return dict(self._acknowledged)

    def send(self, values: Iterable[int]) -> None:
        self._sent.update(values)

    def acknowledge(self, base_offset: int, values: Sequence[int], *, after_deletion: bool) -> None:
        if after_deletion:
            raise self._broken(f"values {list(values)} were acknowledged after the deletion")
        records = list(enumerate(values, base_offset))
        self._learn(records)
        self._acknowledged.update(records)

    def read(self, records: Sequence[tuple[int, int]], *, after_deletion: bool) -> None:
        """Check (offset, value) pairs that a fetch returned."""
        if records and after_deletion:
            raise self._broken(f"offset {records[0][0]} was read after the deletion")
        for offset, value in records:
            if value not in self._sent:
                raise self._broken(f"offset {offset} has value {value}, which was sent to another topic id")
        self._learn(records)

    def check_log(self, records: Sequence[tuple[int, int]], acknowledged: Mapping[int, int]) -> None:
        """Check the records of the whole log. `acknowledged`: the values that were acknowledged before it was read."""
        self.read(records, after_deletion=False)
        if records and records[0][0] != 0:
            raise self._broken(f"the log begins at offset {records[0][0]}")
        if lost := acknowledged.items() - set(records):
            raise self._broken(f"acknowledged (offset, value) pairs are lost: {sorted(lost)}")

    def commit(self, offset: int) -> None:
        """Record that a group is about to commit this offset, which no other commit has."""
        self._committed.add(offset)

    def read_committed(self, offset: int) -> None:
        if offset not in self._committed:
            raise self._broken(f"the committed offset {offset} is that of another topic id")

    def _learn(self, records: Iterable[tuple[int, int]]) -> None:
        for offset, value in records:
            if self._known.setdefault(offset, value) != value:
                raise self._broken(f"offset {offset} has the values {self._known[offset]} and {value}")

    def _broken(self, what: str) -> BrokenDeletion:
        return BrokenDeletion(f"topic id {self.topic_id.hex()}: {what}")


class RecreatedTopic:
    """`configs`: the topic's configs, with which no fault of the run may lose acknowledged records. `commits`: a group
    commits offsets too. With a `replication_factor` above 1 there are several brokers. As in Kafka, each of them may
    serve a deleted topic until it sees the deletion, so that this is checked at the end only."""

    def __init__(
        self,
        context: WorkloadContext,
        random: Random,
        configs: Mapping[str, str],
        *,
        commits: bool,
        replication_factor: int = 1,
    ) -> None:
        self.context = context
        self._random = random
        self._configs = configs
        self._commits = commits
        self._replication_factor = replication_factor
        self._sees_deletions = replication_factor == 1
        self._values = ValueSource(FIRST_VALUE)
        self._current: Incarnation | None = None
        self._deleted: dict[bytes, Incarnation] = {}
        self._clusters: list[Cluster] = []
        # The checker does not check these operations.
        self._no_history = History(lambda: 0)

    async def run(self) -> None:
        """Recreate, write and read the topic until the workload is asked to stop. Raises BrokenDeletion."""
        programs = [self._recreate(), self._read(), *(self._write() for _ in range(PRODUCERS))]
        try:
            await asyncio.gather(*programs)
        finally:
            self._close()

    async def check_at_the_end(self) -> None:
        """Check, after all faults, that the last incarnation has all its records and that the others are gone."""
        current, cluster = self._current, self._cluster()
        self._sees_deletions = True
        assert current is not None
        try:
            while (topic_id := await self._described_id(cluster)) is None:
                await cluster.backoff()
            if topic_id != current.topic_id:
                raise BrokenDeletion(f"the topic has the id {topic_id.hex()} instead of {current.topic_id.hex()}")
            await self._check_log(cluster, current)
            while not await self._check_committed(cluster, current):
                await cluster.backoff()
            for incarnation in self._deleted.values():
                while (await self._fetch(cluster, incarnation, 0, 0))[0] is None:
                    await cluster.backoff()
        finally:
            self._close()

    # Creation and deletion.

    async def _recreate(self) -> None:
        cluster, random = self._cluster(), self._random
        while True:
            current = self._current = await self._create(cluster)
            await self._check_committed(cluster, current)
            await asyncio.sleep(random.choice((0.05, 0.3, 1.5)) * random.random())
            if self.context.stop.requested:
                return
            if self._commits:
                await self._commit(cluster, current)
            # A leader that does not know yet that it was replaced lacks what the next one has acknowledged.
            if random.random() < 0.5 and self._sees_deletions:
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_TIMEOUT_S):
                        await self._check_log(cluster, current)
            await self._delete(cluster, current)
            if random.random() < 0.5:
                await asyncio.sleep(random.random() * 0.3)

    async def _create(self, cluster: Cluster) -> Incarnation:
        while True:
            # The topic exists if an earlier attempt has created it.
            with suppress(OSError, RefusedError):
                await self._admin(cluster).create_topic(
                    TOPIC, 1, self._configs, replication_factor=self._replication_factor
                )
            topic_id = await self._described_id(cluster)
            if topic_id is not None:
                self._note(f"topic {TOPIC} created with the id {topic_id.hex()}")
                return Incarnation(topic_id)
            await cluster.backoff()

    async def _delete(self, cluster: Cluster, incarnation: Incarnation) -> None:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=None, topic_id=incarnation.topic_id)], timeout_ms=BROKER_TIMEOUT_MS
        )
        may_be_done = False
        while True:
            with suppress(OSError):
                connection = await cluster.any_node()
                sent, may_be_done = may_be_done, True
                code = (await connection.request(request, DeleteTopicsResponse)).responses[0].error_code
                if code == ErrorCode.UNKNOWN_TOPIC_ID and not sent and self._sees_deletions:
                    raise BrokenDeletion(f"topic id {incarnation.topic_id.hex()} is gone before it was deleted")
                if code == ErrorCode.NONE:
                    break
                # A repeated request finds no topic if the first one has deleted it. The broker that says so may have
                # been deposed as the controller, so another one is asked, as an admin client does.
                if code == ErrorCode.UNKNOWN_TOPIC_ID and await self._is_gone(cluster, incarnation):
                    break
            await cluster.backoff()
        incarnation.is_deleted = True
        self._deleted[incarnation.topic_id] = incarnation
        self._note(f"topic {TOPIC} with the id {incarnation.topic_id.hex()} deleted")

    async def _is_gone(self, cluster: Cluster, incarnation: Incarnation) -> bool:
        """Return whether Metadata has no topic, or another one of the same name. Raises OSError."""
        described = await self._admin(cluster).describe(TOPIC)
        return described is None or described.topic_id != incarnation.topic_id

    async def _described_id(self, cluster: Cluster) -> bytes | None:
        """Return the topic's id; None if there is no topic or no response. Raises BrokenDeletion for a deleted id."""
        try:
            described = await self._admin(cluster).describe(TOPIC)
        except OSError:
            return None
        if described is not None and described.topic_id in self._deleted:
            if not self._sees_deletions:
                return None
            raise BrokenDeletion(f"topic id {described.topic_id.hex()} is back after its deletion")
        return None if described is None else described.topic_id

    def _is_over(self, incarnation: Incarnation) -> bool:
        """Return whether all brokers must have seen the deletion of a topic id."""
        return incarnation.is_deleted and self._sees_deletions

    # Records.

    async def _leader(self, cluster: Cluster) -> SimClientConnection:
        """Return a connection to the topic's leader. Raises OSError."""
        return await (cluster.any_node() if self._replication_factor == 1 else cluster.leader((TOPIC, 0)))

    async def _write(self) -> None:
        cluster, random = self._cluster(), self._random
        while not self.context.stop.requested:
            if self._current is not None:
                with suppress(OSError):
                    await self._produce(cluster, self._current)
            await asyncio.sleep(random.random() * 0.1)

    async def _produce(self, cluster: Cluster, incarnation: Incarnation) -> None:
        """Send one batch, without retries. Raises OSError."""
        connection = await self._leader(cluster)
        values, after_deletion = self._values.allocate(self._random.choice((1, 3, 10))), self._is_over(incarnation)
        incarnation.send(values)
        response = await send_batch(connection, incarnation.topic_id, 0, values, self._random)
        if not response.error_code:
            incarnation.acknowledge(response.base_offset, values, after_deletion=after_deletion)
        else:
            cluster.forget_leader((TOPIC, 0))

    async def _read(self) -> None:
        """Fetch each incarnation from its start to its end, and wait there for more records."""
        cluster, random = self._cluster(), self._random
        while not self.context.stop.requested:
            incarnation, position = self._current, 0
            while incarnation is not None and incarnation is self._current and not self.context.stop.requested:
                data, position = await self._fetch(cluster, incarnation, position, random.choice((0, 100, 500)))
                if data is None or data.error_code:
                    await cluster.backoff()
            await cluster.backoff()

    async def _fetch(
        self,
        cluster: Cluster,
        incarnation: Incarnation,
        position: int,
        max_wait_ms: int,
        records: list[tuple[int, int]] | None = None,
    ) -> tuple[PartitionData | None, int]:
        """Send one Fetch. Returns the response, or None if there is none, and the next position.

        The records are appended to `records` as (offset, value).
        """
        partition = FetchPartition(partition=0, fetch_offset=position, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            topics=[FetchTopic(topic_id=incarnation.topic_id, partitions=[partition])],
        )
        after_deletion = self._is_over(incarnation)
        try:
            connection = await self._leader(cluster)
            response = await connection.request(request, FetchResponse)
        except OSError:
            return None, position
        if response.error_code:
            return None, position
        data = response.responses[0].partitions[0]
        if data.error_code:
            cluster.forget_leader((TOPIC, 0))
        if data.error_code or not data.records:
            return data, position
        batches = read_batches(data.records, position, (), 1 << 30)
        incarnation.read(batches.reads, after_deletion=after_deletion)
        if records is not None:
            records += batches.reads
        return data, batches.next_offset

    async def _check_log(self, cluster: Cluster, incarnation: Incarnation) -> None:
        """Read the log from its start to its end, and check that all acknowledged records are there."""
        acknowledged = incarnation.acknowledged
        records: list[tuple[int, int]] = []
        position = 0
        while True:
            data, position = await self._fetch(cluster, incarnation, position, 0, records)
            if data is None or data.error_code:
                await cluster.backoff()
            elif position >= data.high_watermark:
                break
        incarnation.check_log(records, acknowledged)

    # Committed offsets.

    async def _commit(self, cluster: Cluster, incarnation: Incarnation) -> None:
        """Make one attempt to commit an offset that no other commit has."""
        (offset,) = self._values.allocate(1)
        incarnation.commit(offset)
        await self._offsets(cluster).commit({(TOPIC, 0): (offset, NO_EPOCH)})

    async def _check_committed(self, cluster: Cluster, incarnation: Incarnation) -> bool:
        """Check the committed offset. Returns whether the coordinator has responded."""
        if not self._commits:
            return True
        try:
            committed = await self._offsets(cluster).committed([(TOPIC, 0)])
        except (OSError, RefusedError):
            return False
        incarnation.read_committed(committed[TOPIC, 0][0])
        return True

    def _admin(self, cluster: Cluster) -> Admin:
        return Admin(cluster, self._no_history, TOPIC)

    def _offsets(self, cluster: Cluster) -> GroupOffsets:
        return GroupOffsets(cluster, self._no_history, TOPIC, GROUP)

    # Clients.

    def _cluster(self) -> Cluster:
        cluster = Cluster(self.context.loop, self.context.bootstrap, self._random, TOPIC)
        self._clusters.append(cluster)
        return cluster

    def _close(self) -> None:
        for cluster in self._clusters:
            cluster.close()
        self._clusters.clear()

    def _note(self, text: str) -> None:
        self.context.history.note(TOPIC, text)

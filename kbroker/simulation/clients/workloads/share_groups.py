"""A share group over the topics of a run: its members, its dead letters, and what must be true in the end.

Members pause, die, come twice, release, reject, renew, and send acknowledgements too late or for records of others.
What they see is checked with the rules of share_rules.py.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random

from kbroker.client.requests import GROUP as GROUP_KEY
from kbroker.config import dead_letter_headers as headers
from kbroker.config.config_def import ConfigResourceType
from kbroker.config.queue_configs import DEAD_LETTER_ENABLE
from kbroker.share.delivery import AcknowledgeType
from kbroker.simulation.checker.history import History, Poll, TopicPartition
from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.cluster import Cluster, CoordinatorClient, UnavailableError
from kbroker.simulation.clients.group_offsets import EARLIEST, LATEST, list_offset
from kbroker.simulation.clients.records import MAX_DECOMPRESSED, read_batches
from kbroker.simulation.clients.share_member import ALL_RECORDS, ShareMember, Types
from kbroker.simulation.clients.workloads.context import StopSignal, WorkloadContext
from kbroker.simulation.clients.workloads.share_rules import Place, SharedRecords, SharePolicy
from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.k90_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
)
from protocol.records.batch import iter_batch_records, iter_headers

GROUP, DEAD_LETTERS = "shared", "dlq.shared"
HEARTBEAT_S = 1.0
# Every record with such a value fails with everybody, or is rejected by everybody.
FAILING, REJECTED = 23, 29
ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)


class ShareGroupWorkload:
    """`partitions`: those that the group consumes. `leader_of`: as that of ShareMember. `added`: those of a topic
    that an operator deletes and creates (share_changes.py)."""

    def __init__(
        self,
        random: Random,
        partitions: Sequence[TopicPartition],
        leader_of: Callable[[int, TopicPartition], object],
        *,
        has_exact_clocks: bool,
        committed_only: bool,
    ) -> None:
        self.committed_only = committed_only
        self.added: list[TopicPartition] = []
        self._partitions = list(partitions)
        self._topics = list(dict.fromkeys(topic for topic, _ in partitions))
        self._leader_of = leader_of
        self._delays_s = random.choice(((), (), (0.2,), (0.5, 2.0)))
        self.policy = SharePolicy(
            delivery_limit=random.choice((2, 3, 5)),
            lock_s=random.choice((1.0, 2.0, 5.0)),
            delays_s=self._delays_s if has_exact_clocks else (),
            has_dead_letters=random.random() < 0.6,
        )
        self._max_locks = random.choice((100, 100, 500))
        self.records = SharedRecords(self.policy)
        self.is_paused = False
        self._running = 0

    @property
    def partitions(self) -> list[TopicPartition]:
        return [*self._partitions, *self.added]

    def subscribe(self, topic: str) -> None:
        """Let the members that begin from now on consume another topic."""
        self._topics.append(topic)

    @property
    def configs(self) -> dict[str, str]:
        return {
            "share.auto.offset.reset": "earliest",
            "share.isolation.level": "read_committed" if self.committed_only else "read_uncommitted",
            "share.delivery.count.limit": str(self.policy.delivery_limit),
            "share.record.lock.duration.ms": str(int(self.policy.lock_s * 1000)),
            "share.partition.max.record.locks": str(self._max_locks),
            "kbroker.share.retry.delays.ms": ",".join(str(int(delay * 1000)) for delay in self._delays_s),
            "errors.deadletterqueue.topic.name": DEAD_LETTERS if self.policy.has_dead_letters else "",
        }

    async def create(self, admin: Admin, replication_factor: int) -> None:
        await admin.create_topic(DEAD_LETTERS, 1, {DEAD_LETTER_ENABLE: "true"}, replication_factor=replication_factor)
        await admin.alter_configs(GROUP, self.configs, kind=ConfigResourceType.GROUP)

    # Members.

    async def consume(self, context: WorkloadContext, name: str, random: Random) -> None:
        """Run one member after the other, until asked to stop. Raises BrokenShareGroup."""
        number = 0
        while not context.stop.requested:
            if self.is_paused:
                await asyncio.sleep(HEARTBEAT_S * 0.1)
                continue
            # Some return with the same id, as which the leader and the coordinator may still know them.
            number += random.random() < 0.5
            cluster = context.cluster(name, random, consumer_protocol=True)
            member = ShareMember(
                cluster, random, GROUP, f"{name}.{number}", self._topics, self.records, self._leader_of
            )
            self._running += 1
            beating = context.loop.create_task(self._beat(member, random))
            try:
                await _Program(self, context.stop, cluster, member, random).run()
                if random.random() < (0.95 if self.is_paused else 0.5) or context.stop.requested:
                    await member.leave()
            finally:
                beating.cancel()
                member.close()
                self._running -= 1

    @asynccontextmanager
    async def without_members(self) -> AsyncIterator[None]:
        """The members end meanwhile. The coordinator may still know those that do not leave."""
        self.is_paused = True
        while self._running:
            await asyncio.sleep(HEARTBEAT_S * 0.1)
        yield
        self.is_paused = False

    async def _beat(self, member: ShareMember, random: Random) -> None:
        while True:
            await member.heartbeat()
            await asyncio.sleep(HEARTBEAT_S * random.uniform(0.2, 1.0))

    # The end.

    async def until_finished(self, context: WorkloadContext, random: Random) -> None:
        """Wait until the group is finished with all partitions."""
        cluster = Cluster(context.loop, context.bootstrap, random, "shared-end")
        coordinator = CoordinatorClient(cluster, GROUP, GROUP_KEY)
        rows = [
            DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=sorted(indexes))
            for name, indexes in _by_topic(self.partitions).items()
        ]
        groups = [DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=rows)]

        async def is_finished() -> bool:
            connection = await coordinator.find()
            response = await connection.request(
                DescribeShareGroupOffsetsRequest(groups=groups), DescribeShareGroupOffsetsResponse
            )
            group = response.groups[0]
            if group.error_code:
                coordinator.disconnect()
                raise UnavailableError(ErrorCode(group.error_code).name)
            starts = {
                (topic.topic_name, row.partition_index): row.start_offset
                for topic in group.topics
                for row in topic.partitions
                if not row.error_code
            }
            ends = {tp: (await list_offset(cluster, tp, LATEST))[0] for tp in self.partitions}
            return all(starts.get(tp) == end or end == 0 for tp, end in ends.items())

        while not await cluster.retry(is_finished):
            await cluster.backoff()
        cluster.close()

    async def check_at_the_end(
        self, context: WorkloadContext, random: Random, history: History, *, is_complete: bool
    ) -> None:
        """Compare what members got with the final reads and the dead letters. Raises BrokenShareGroup."""
        cluster = Cluster(context.loop, context.bootstrap, random, "shared-end")
        letters = await _read_dead_letters(cluster)
        log: dict[Place, int] = {}
        for tp in self.added:
            async for data in _read_log(cluster, tp):
                log.update({(tp, offset): value for offset, value in read_batches(data, 0, (), ALL_RECORDS).reads})
        cluster.close()
        for operation in history.operations:
            action = operation.action
            if (
                isinstance(action, Poll)
                and history.final is not None
                and operation.begun > history.final
                and action.committed_only == self.committed_only
            ):
                log.update({(read.tp, read.offset): read.value for read in action.reads})
        self.records.check_at_the_end(log, letters, is_complete=is_complete)


def _by_topic(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, index in partitions:
        found.setdefault(name, []).append(index)
    return found


async def _read_log(cluster: Cluster, tp: TopicPartition) -> AsyncIterator[bytes]:
    """Yield the batches of a partition."""
    position, _ = await cluster.retry(lambda: list_offset(cluster, tp, EARLIEST))
    end, _ = await cluster.retry(lambda: list_offset(cluster, tp, LATEST))
    while position < end:
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            topics=[
                FetchTopic(
                    topic=tp[0],
                    topic_id=cluster.topic_ids[tp[0]],
                    partitions=[FetchPartition(partition=tp[1], fetch_offset=position, partition_max_bytes=1 << 20)],
                )
            ],
        )
        try:
            response = await (await cluster.leader(tp)).request(request, FetchResponse)
            data = bytes(response.responses[0].partitions[0].records or b"")
        except (OSError, IndexError):
            cluster.forget_leader(tp)
            await cluster.backoff()
            continue
        position = max([header.next_offset for _, header in iter_headers(data)], default=position)
        yield data


async def _read_dead_letters(cluster: Cluster) -> Counter[Place]:
    """Return the number of dead letters of each record."""
    letters: Counter[Place] = Counter()
    async for data in _read_log(cluster, (DEAD_LETTERS, 0)):
        for pos, header in iter_headers(data):
            for record in iter_batch_records(memoryview(data)[pos : pos + header.size], header, MAX_DECOMPRESSED):
                found = {key.decode(): value or b"" for key, value in record.headers}
                place = found[headers.TOPIC].decode(), int(found[headers.PARTITION])
                letters[place, int(found[headers.OFFSET])] += 1
    return letters


class _Program:
    """What one member does with the records that it gets, until it dies, leaves, or is stopped."""

    def __init__(
        self, group: ShareGroupWorkload, stop: StopSignal, cluster: Cluster, member: ShareMember, random: Random
    ) -> None:
        self._group = group
        self._stop = stop
        self._cluster = cluster
        self._member = member
        self._random = random
        self._lock_s = group.policy.lock_s
        # By leader, what the next fetch acknowledges.
        self._next: dict[int, Types] = {}

    def _happens(self, chance: float) -> bool:
        """Return whether an event with this probability happens. While draining, none does."""
        return self._random.random() < chance and not self._stop.draining

    async def run(self) -> None:
        while not self._stop.requested and not self._group.is_paused and not self._happens(0.01):
            drawn = await self._member.draw_leader()
            if drawn is None:
                await self._cluster.backoff()
                continue
            node, partitions = drawn
            types, max_wait_ms = self._next.pop(node, {}), self._random.choice((0, 100, 500))
            received = await self._member.fetch(node, partitions, types, max_wait_ms, is_greedy=self._stop.draining)
            if not received:
                await self._cluster.backoff()
            elif not self._happens(0.05):
                await self._process(node, received)

    async def _process(self, node: int, received: Mapping[TopicPartition, Mapping[int, tuple[int, int]]]) -> None:
        member = self._member
        types = {tp: self._draw_types(records) for tp, records in received.items()}
        types = {tp: found for tp, found in types.items() if found}
        if self._happens(0.1):
            await asyncio.sleep(self._random.random() * self._lock_s)
            await member.acknowledge(
                node, {tp: dict.fromkeys(found, RENEW) for tp, found in types.items()}, renews=True
            )
        if self._happens(0.15):
            # Perhaps longer than the lock, which then is another member's.
            await asyncio.sleep(self._random.random() * 1.5 * self._lock_s)
        if self._happens(0.05):
            await member.acknowledge(node, dict(self._of_others(received)))
        if self._happens(0.05):
            await member.acknowledge(node, types, closes=True)
        elif self._random.random() < 0.5:
            self._next[node] = types
        else:
            await member.acknowledge(node, types)

    def _of_others(
        self, partitions: Sequence[TopicPartition] | Mapping[TopicPartition, object]
    ) -> Iterator[tuple[TopicPartition, dict[int, int]]]:
        """Accept a record that another member has."""
        now_s = self._cluster.loop.time()
        for tp in partitions:
            for offset, holder in self._group.records.locked(tp, now_s):
                if holder != self._member.member_id:
                    yield tp, {offset: ACCEPT}
                    break

    def _draw_types(self, records: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """Draw what becomes of records. Some are left out: their locks will expire."""
        types: dict[int, int] = {}
        leaves_some = self._happens(0.1)
        for offset, (value, _) in records.items():
            chance = self._random.random()
            if value % FAILING == 0:
                types[offset] = RELEASE
            elif value % REJECTED == 0:
                types[offset] = REJECT
            elif leaves_some and chance < 0.5:
                continue
            elif self._stop.draining or chance < 0.8:
                types[offset] = ACCEPT
            else:
                types[offset] = RELEASE if chance < 0.95 else REJECT
        return types

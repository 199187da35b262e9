"""A client that produces single batches, without retries, and fetches: what it sees is checked with queue_rules.py."""

from collections.abc import Callable, Sequence
from random import Random

from kbroker.simulation.checker.history import History
from kbroker.simulation.clients.admin import BROKER_TIMEOUT_MS, Admin
from kbroker.simulation.clients.cluster import Cluster
from kbroker.simulation.clients.group_offsets import LATEST, list_offset
from kbroker.simulation.clients.records import MAX_DECOMPRESSED, value_of
from kbroker.simulation.clients.workloads.context import WorkloadContext
from kbroker.simulation.clients.workloads.queue_rules import BrokenQueue, SeenRecord
from kbroker.simulation.runtime.environment import EPOCH_MS
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from protocol.records.batch import Buffer, NewRecord, body_of, build_batch, iter_headers
from protocol.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, decompress
from protocol.records.record import Header, iter_records

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
CODECS = (NONE, NONE, NONE, GZIP, SNAPPY, LZ4, ZSTD)
TAGS = b"TAGS"
# Every second fetch is like one of kafka-go: it has this version, and the client stays at its offset after batches
# without records.
OLD_FETCH_VERSION = 10
# The tag of every third record, which the views select.
SELECTED = b"selected"


def is_selected(value: int) -> bool:
    return value % 3 == 0


def tags(value: int) -> tuple[Header, ...]:
    return ((TAGS, SELECTED if is_selected(value) else b"other"),)


class QueueClient:
    """One client of a run; `close` after use. `stopped`: the workload was asked to stop."""

    def __init__(self, context: WorkloadContext, random: Random) -> None:
        self.context = context
        self.random = random
        self.cluster = Cluster(context.loop, context.bootstrap, random, "queues")
        self._fetches = 0
        self._epochs = SeenEpochs()

    def close(self) -> None:
        self.cluster.close()

    @property
    def stopped(self) -> bool:
        return self.context.stop.requested

    def admin(self, name: str) -> Admin:
        # The checker does not check these operations.
        return Admin(self.cluster, History(lambda: 0), name, timeout_s=5.0)

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.context.loop.time() * 1000)

    async def produce(self, topic: str, records: Sequence[NewRecord]) -> int | None:
        """Send one batch to partition 0. Returns its base offset, None if the broker has refused it. Raises OSError."""
        cluster = self.cluster
        connection = await cluster.leader((topic, 0))
        batch = build_batch(records, codec=self.random.choice(CODECS))
        request = ProduceRequest(
            acks=-1,
            timeout_ms=BROKER_TIMEOUT_MS,
            topic_data=[
                TopicProduceData(
                    topic_id=cluster.topic_ids[topic], partition_data=[PartitionProduceData(index=0, records=batch)]
                )
            ],
        )
        response = (await connection.request(request, ProduceResponse)).responses[0].partition_responses[0]
        if not response.error_code:
            return response.base_offset
        cluster.forget_leader((topic, 0))
        return None

    async def fetch(
        self, topic: str, position: int, log: list[SeenRecord], index: int = 0, *, committed: bool = False
    ) -> tuple[PartitionData | None, int]:
        """Send one Fetch. Returns the response, or None if there is none or an error, and the next position.

        The records are appended to `log`; with `committed` only those of no transaction or a committed one.
        """
        cluster = self.cluster
        self._fetches += 1
        is_old = self._fetches % 2 == 0
        partition = FetchPartition(partition=index, fetch_offset=position, partition_max_bytes=1 << 20)
        try:
            connection = await cluster.leader((topic, index))
            fetched = FetchTopic(topic=topic, topic_id=cluster.topic_ids[topic], partitions=[partition])
            request = FetchRequest(
                max_wait_ms=self.random.choice((0, 100)),
                min_bytes=1,
                isolation_level=READ_COMMITTED if committed else READ_UNCOMMITTED,
                topics=[fetched],
            )
            version = OLD_FETCH_VERSION if is_old else None
            response = await connection.request(request, FetchResponse, version=version)
        except OSError:
            return None, position
        data = None if response.error_code else response.responses[0].partitions[0]
        if data is None or data.error_code:
            cluster.forget_leader((topic, index))
            return None, position
        self._epochs.check((topic, index), data.records or b"")
        aborted = [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()]
        return data, _decode(data.records or b"", position, log, aborted, stays=is_old)

    async def read_for_a_while(self, topic: str, position: int, check: Callable[[list[SeenRecord]], None]) -> None:
        """Send some fetches from `position` on, and check the records of each. Ends early after an error."""
        for _ in range(self.random.choice((5, 50))):
            log: list[SeenRecord] = []
            data, position = await self.fetch(topic, position, log)
            check(log)
            if data is None or self.stopped:
                return

    async def read_to_end(self, topic: str, position: int, log: list[SeenRecord], *, committed: bool = False) -> int:
        """Append the records from `position` to the end of partition 0 to `log`. Returns the next position."""
        end = await self._end_offset(topic)
        while True:
            data, position = await self.fetch(topic, position, log, committed=committed)
            if data is None:
                await self.cluster.backoff()
            elif position >= max(end, data.high_watermark):
                return position

    async def _end_offset(self, topic: str) -> int:
        """Return the end of partition 0. A new leader refuses that while its high watermark is still unknown.

        A fetch from it returns nothing then, as at the end of an empty log.
        """
        end, _ = await self.cluster.retry(lambda: list_offset(self.cluster, (topic, 0), LATEST))
        return end


class SeenEpochs:
    """The leader epochs of batches: a client that resumes after a batch asks where its epoch ends (KIP-320)."""

    def __init__(self) -> None:
        # The (last offset, leader epoch) of the batch with the highest offset of each partition.
        self._latest: dict[tuple[str, int], tuple[int, int]] = {}

    def check(self, tp: tuple[str, int], data: Buffer) -> None:
        """Raise BrokenQueue if a batch has no leader epoch, or one that contradicts another batch."""
        if tp[1]:
            # The partition may have been removed, and be another one now.
            self._latest.pop(tp, None)
        for _, header in iter_headers(data):
            seen = (header.last_offset, header.leader_epoch)
            latest = self._latest.get(tp, seen)
            in_order = latest[1] <= seen[1] if latest[0] < seen[0] else seen[1] <= latest[1]
            if seen[1] < 0 or not in_order:
                raise BrokenQueue(
                    f"{tp[0]}-{tp[1]}: leader epoch {seen[1]} at {seen[0]}, and {latest[1]} at {latest[0]}"
                )
            self._latest[tp] = max(latest, seen)


def _decode(
    data: Buffer, position: int, log: list[SeenRecord], aborted: Sequence[tuple[int, int]], *, stays: bool
) -> int:
    """Append the records from `position` on, and return the next position.

    `aborted`: (producer id, first offset) of the transactions whose records are left out. `stays`: batches without
    records do not move the position.
    """
    pending, producers = sorted(aborted, key=lambda transaction: transaction[1]), set[int]()
    for pos, header in iter_headers(data):
        while pending and pending[0][1] <= header.last_offset:
            producers.add(pending.pop(0)[0])
        if header.is_control:
            producers.discard(header.producer_id)
        elif header.next_offset > position and not (header.is_transactional and header.producer_id in producers):
            body = decompress(header.codec, body_of(data, pos, header.size), MAX_DECOMPRESSED)
            for record in iter_records(body, header.count, header.base_timestamp):
                offset = header.base_offset + record.offset_delta
                if offset >= position:
                    log.append(SeenRecord.of(offset, value_of(record.value), record.timestamp, record.headers))
        if header.count or not stays:
            position = max(position, header.next_offset)
    return position

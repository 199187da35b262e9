"""Dead letters of share groups (KIP-1191): records that were rejected, or delivered too often.

The share coordinator stores that a record needs a dead letter (ARCHIVING) before it is written, and that it is done
(ARCHIVED) afterwards. So each record gets its dead letter, perhaps twice if the leader changes between. While it cannot
be written, for example because the topic does not exist, it is tried again; Kafka gives up after five attempts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.common import NO_LEADER, KafkaError
from kbroker.config import dead_letter_headers as names
from kbroker.config.queue_configs import DEAD_LETTER_ENABLE
from kbroker.config.topic_config import TopicConfig
from kbroker.metadata.topics.topic_requests import NewTopic
from kbroker.runtime.event_log import EventLogger
from kbroker.share.in_flight import Span
from kbroker.storage.log.log_reads import read_blocking
from protocol.errors import ErrorCode
from protocol.fast.produce import TopicRecords
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.records.batch import MAX_DECOMPRESSED_BYTES, NewRecord, build_batch, iter_batch_records, iter_headers
from protocol.records.record import Record, encode_record

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.config import BrokerConfig
    from kbroker.interbroker.auto_topic_creation_manager import AutoTopicCreationManager
    from kbroker.interbroker.peers import Peers
    from kbroker.metadata.image import MetadataImage, TopicImage
    from kbroker.replica.replica_manager import ReplicaManager
    from kbroker.runtime.environment import Environment
    from kbroker.share.leader import SharePartitionLeader

log = EventLogger("kbroker.share")

PRODUCE_VERSION = 13
# The records of one attempt, and the size of the reads of the originals.
MAX_RECORDS = 100
READ_BYTES = 1 << 16
# The pauses between attempts, in seconds.
MIN_BACKOFF_S, MAX_BACKOFF_S = 1.0, 30.0
# As in Kafka.
REJECTED = "Offset rejected by client."
EXHAUSTED = "Offset delivery count exceeded the threshold."
_FAILURE_NAMES = frozenset([name.encode() for name in names.FAILURE_HEADERS])


class DeadLetterWriter:
    """Writes the dead letters of the share partitions of this broker. `peers` is None if the cluster has no other."""

    def __init__(
        self,
        environment: Environment,
        image: MetadataImage,
        replicas: ReplicaManager,
        topics: AutoTopicCreationManager,
        peers: Peers | None,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._environment = environment
        self._image = image
        self._replicas = replicas
        self._topics = topics
        self._peers = peers
        self._config = config
        self._tasks: dict[SharePartitionLeader, Task[None]] = {}

    def start(self, leader: SharePartitionLeader) -> None:
        """Write the dead letters of a share partition, unless that is in progress."""
        if leader not in self._tasks:
            self._tasks[leader] = task = leader.start_task(self._run(leader))
            task.add_done_callback(lambda _: self._tasks.pop(leader))

    async def _run(self, leader: SharePartitionLeader) -> None:
        backoff_s, reported = MIN_BACKOFF_S, ""
        while leader.failure is None and leader.state is not None and (ranges := leader.state.dead_letters()):
            first = ranges[0]
            span = Span(first.first, min(first.last, first.first + MAX_RECORDS - 1))
            try:
                await self._write(leader, span, first.delivery_count)
                code = await leader.submit(leader.state.archive_dead_letters(span))
                if code:
                    raise KafkaError(code, "The state of the share partition was not stored.")
                backoff_s = MIN_BACKOFF_S
            except Exception as error:
                reason = f"{error}"
                if reason != reported:
                    reported = reason
                    group, partition = leader.key.group_id, leader.partition.tp
                    log.warning("dead letters must wait", reason=reason, group=group, partition=partition)
                await self._environment.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _write(self, leader: SharePartitionLeader, span: Span, deliveries: int) -> None:
        settings = leader.settings
        if not settings.dead_letter_topic:
            # The group has none any more.
            return
        topic = await self._topic(settings.dead_letter_topic)
        config = TopicConfig.of(topic.configs, self._config().topic_defaults)
        originals: dict[int, Record] = {}
        if settings.config.errors_deadletterqueue_copy_record_enable:
            originals = await self._environment.offload(_read_blocking, leader, span)
        source = self._image.topics_by_id.get(leader.key.topic_id)
        origin = leader.partition.tp.topic if source is None else source.name
        reason = EXHAUSTED if deliveries >= settings.delivery.delivery_count_limit else REJECTED
        values = {
            names.TOPIC: origin,
            names.PARTITION: str(leader.key.partition),
            names.OFFSET: "",
            names.GROUP: leader.key.group_id,
            names.DELIVERY_COUNT: str(deliveries),
            names.MESSAGE: reason,
        }
        now_ms = self._environment.clock.now_ms()
        letters = [
            dead_letter(values, offset, originals.get(offset), now_ms, config.max_message_bytes // 2)
            for offset in range(span.first, span.last + 1)
        ]
        index = leader.key.partition % len(topic.partitions)
        for batch in _batches(letters, config.max_message_bytes // 2):
            await self._append(topic, index, batch)

    async def _topic(self, name: str) -> TopicImage:
        """Return the dead-letter topic. Raises KafkaError if it cannot be one."""
        config = self._config()
        prefix = config.errors_deadletterqueue_topic_name_prefix
        if name.startswith("__") or not name.startswith(prefix):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"The name {name} does not begin with '{prefix}'.")
        topic = self._image.topics.get(name)
        if topic is None:
            if not config.errors_deadletterqueue_auto_create_topics_enable:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic {name} does not exist.")
            return await self._topics.ensure_topic(NewTopic(name, configs=[(DEAD_LETTER_ENABLE, "true")]))
        if topic.configs.get(DEAD_LETTER_ENABLE) != "true":
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{DEAD_LETTER_ENABLE} is not true on {name}.")
        return topic

    async def _append(self, topic: TopicImage, index: int, batch: bytes) -> None:
        """Append a batch with acks=all. Raises KafkaError; it may be stored nevertheless."""
        timeout_ms, leader = self._config().request_timeout_ms, topic.partitions[index].leader
        result: Any
        if leader == self._replicas.node_id:
            topics: list[TopicRecords] = [(topic.topic_id, [(index, memoryview(batch))])]
            result = self._replicas.append_records(topics, -1, timeout_ms, PRODUCE_VERSION, "", in_turn=False)
            while not isinstance(result, list):
                result = await result
            code = result[0][1][0][1]
        elif leader == NO_LEADER or self._peers is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        else:
            data = TopicProduceData(
                topic_id=topic.topic_id, partition_data=[PartitionProduceData(index=index, records=batch)]
            )
            request = ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=[data])
            result = await self._peers.request(leader, request, PRODUCE_VERSION, timeout_ms=timeout_ms)
            code = result.responses[0].partition_responses[0].error_code
        if code:
            raise KafkaError(ErrorCode(code), f"{topic.name}-{index} has refused dead letters: {ErrorCode(code).name}")


def dead_letter(values: dict[str, str], offset: int, original: Record | None, now_ms: int, max_bytes: int) -> NewRecord:
    """Return the dead letter of a record: a copy, or a pointer if the record is not copied, is gone, or is too large.

    Its timestamp is the time of the failure, because retention depends on it.
    """
    own = [(name.encode(), value.encode()) for name, value in {**values, names.OFFSET: str(offset)}.items()]
    if original is not None:
        headers = [header for header in original.headers if header[0] not in _FAILURE_NAMES] + own
        if original.timestamp >= 0:
            headers.append((names.ORIGINAL_TIMESTAMP.encode(), struct.pack(">q", original.timestamp)))
        if len(encode_record(0, 0, original.key, original.value, headers)) <= max_bytes:
            return now_ms, original.key, original.value, headers
    return now_ms, None, None, [*own, (names.OMITTED.encode(), b"key,value,headers")]


def _batches(letters: Sequence[NewRecord], max_bytes: int) -> Iterator[bytes]:
    """Build batches of about `max_bytes`."""
    collected: list[NewRecord] = []
    size = 0
    for letter in letters:
        letter_size = len(encode_record(0, 0, *letter[1:]))
        if collected and size + letter_size > max_bytes:
            yield bytes(build_batch(collected))
            collected, size = [], 0
        collected.append(letter)
        size += letter_size
    yield bytes(build_batch(collected))


def _read_blocking(leader: SharePartitionLeader, span: Span) -> dict[int, Record]:
    """Read the records of a span that are still there. Called in a thread.

    They are committed, since members had them. A new leader may have a high watermark below them until its followers
    fetch, so all of its log is read.
    """
    records: dict[int, Record] = {}
    partition_log, end = leader.partition.log, leader.partition.log.log_end_offset
    position = max(span.first, partition_log.log_start_offset)
    # After an unclean election the log may end before them.
    while position <= span.last and position < end:
        data = bytes(read_blocking(partition_log, position, READ_BYTES, end))
        if not data:
            break
        for pos, header in iter_headers(data):
            batch = memoryview(data)[pos : pos + header.size]
            for record in iter_batch_records(batch, header, MAX_DECOMPRESSED_BYTES):
                offset = header.base_offset + record.offset_delta
                if span.first <= offset <= span.last:
                    records[offset] = record
            position = max(position, header.next_offset)
    return records

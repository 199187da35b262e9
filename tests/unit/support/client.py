"""A client that says exactly what a test wants said, in the project's own codecs, and records to send and read."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kbroker.common import Buffer
from kbroker.simulation.runtime.clock import EPOCH_MS
from protocol.errors import ErrorCode
from protocol.framing import decode_response_header, encode_frame, encode_request_header
from protocol.messages.k00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.messages.k01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.records.batch import body_of, build_batch, iter_headers
from protocol.records.compression import decompress
from protocol.records.record import iter_records
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message

M = TypeVar("M", bound=Message)
Place = tuple[str, int]


def dotted(configs: Mapping[str, object]) -> dict[str, str]:
    """Configs from keyword arguments: underscores for dots, any value for text."""
    return {name.replace("_", "."): _text(value) for name, value in configs.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Client(asyncio.Protocol):
    """One connection. Answers are checked to come in the order of the requests."""

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.ids: dict[str, bytes] = {}
        self.closed: asyncio.Future[Exception | None] = loop.create_future()
        self.received = bytearray()
        # Of each request that is to be answered: its correlation id, and what takes the answer.
        self._asked: deque[tuple[int, Callable[[bytes], None], asyncio.Future[Any]]] = deque()
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        while len(self.received) >= 4:
            size = int.from_bytes(self.received[:4], "big")
            if len(self.received) < 4 + size:
                return
            body = bytes(self.received[4 : 4 + size])
            del self.received[: 4 + size]
            correlation_id, take, _ = self._asked.popleft()
            assert int.from_bytes(body[:4], "big") == correlation_id, "answers out of order"
            take(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(exc)
        for _, _, answer in self._asked:
            if not answer.done():
                answer.set_exception(ConnectionResetError("the broker closed the connection"))
                answer.exception()
        self._asked.clear()

    def close(self) -> None:
        self.transport.abort()

    # Any request.

    def encoded(self, request: Message, version: int) -> bytes:
        """A whole frame; the next one gets another correlation id."""
        self._number += 1
        key = request.__options__["key"]
        return encode_frame(encode_request_header(key, version, self._number, "story"), encode(request, version))

    def post(self, request: Message, version: int, answer: type[M]) -> "asyncio.Future[M]":
        """Ask without waiting."""
        if self.closed.done():
            raise ConnectionResetError("the connection was closed before")
        data = self.encoded(request, version)
        asked = self.expect(request, version, answer)
        self.transport.write(data)
        return asked

    def expect(self, request: Message, version: int, answer: type[M]) -> "asyncio.Future[M]":
        """What the answer to the request that was encoded last will be."""
        asked: asyncio.Future[M] = self.loop.create_future()
        key = request.__options__["key"]

        def take(body: bytes) -> None:
            _, pos = decode_response_header(body, key, version)
            if not asked.done():
                asked.set_result(decode(answer, body, version, pos))

        self._asked.append((self._number, take, asked))
        return asked

    async def ask(self, request: Message, version: int, answer: type[M]) -> M:
        return await self.post(request, version, answer)

    # Produce.

    def produce_request(
        self, topic: str, batches: Mapping[int, Buffer | None], *, acks: int = -1, timeout_ms: int = 30_000
    ) -> ProduceRequest:
        parts = [PartitionProduceData(index=index, records=records) for index, records in batches.items()]
        data = TopicProduceData(name=topic, topic_id=self.ids.get(topic, bytes(16)), partition_data=parts)
        return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[data])

    def post_produce(
        self, topic: str, records: Buffer | None, partition: int = 0, *, version: int = 12, **options: Any
    ) -> "asyncio.Future[PartitionProduceResponse]":
        """Produce to one partition; the future gives that partition's answer."""
        answer: asyncio.Future[PartitionProduceResponse] = self.loop.create_future()
        request = self.produce_request(topic, {partition: records}, **options)

        def unpack(asked: "asyncio.Future[ProduceResponse]") -> None:
            if answer.done():
                return
            if asked.exception() is not None:
                answer.set_exception(asked.exception())  # type: ignore[arg-type]
                answer.exception()
            else:
                answer.set_result(asked.result().responses[0].partition_responses[0])

        self.post(request, version, ProduceResponse).add_done_callback(unpack)
        return answer

    async def produce(
        self, topic: str, records: Buffer | None, partition: int = 0, **options: Any
    ) -> PartitionProduceResponse:
        return await self.post_produce(topic, records, partition, **options)

    def produce_unanswered(self, topic: str, records: Buffer | None, partition: int = 0, version: int = 12) -> None:
        """With acks=0: nothing will be said."""
        self.transport.write(self.encoded(self.produce_request(topic, {partition: records}, acks=0), version))

    # Fetch.

    def fetch_request(
        self,
        wanted: Mapping[Place, int],
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 50 << 20,
        partition_max_bytes: int = 1 << 20,
        session: tuple[int, int] = (0, -1),
        forgotten: Iterable[Place] = (),
        isolation_level: int = 0,
        leader_epoch: int = -1,
    ) -> FetchRequest:
        """`wanted`: fetch offsets by (topic, partition)."""
        topics: dict[str, list[FetchPartition]] = {}
        for (topic, index), offset in wanted.items():
            topics.setdefault(topic, []).append(
                FetchPartition(
                    partition=index,
                    fetch_offset=offset,
                    partition_max_bytes=partition_max_bytes,
                    current_leader_epoch=leader_epoch,
                )
            )
        unknown = bytes(16)
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=session[0],
            session_epoch=session[1],
            topics=[
                FetchTopic(topic=topic, topic_id=self.ids.get(topic, unknown), partitions=partitions)
                for topic, partitions in topics.items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic=topic, topic_id=self.ids.get(topic, unknown), partitions=[index])
                for topic, index in forgotten
            ],
        )

    def post_fetch(
        self, wanted: Mapping[Place, int], *, version: int = 12, **options: Any
    ) -> "asyncio.Future[FetchResponse]":
        return self.post(self.fetch_request(wanted, **options), version, FetchResponse)

    async def fetch(self, wanted: Mapping[Place, int], **options: Any) -> FetchResponse:
        return await self.post_fetch(wanted, **options)

    async def fetch_one(self, topic: str, offset: int, partition: int = 0, **options: Any) -> PartitionData:
        """One partition, outside of any session."""
        answer = await self.fetch({(topic, partition): offset}, **options)
        assert answer.error_code == 0
        return answer.responses[0].partitions[0]

    async def read(self, topic: str, offset: int = 0, partition: int = 0) -> list[bytes]:
        """The values of all that can be read from an offset on."""
        values: list[bytes] = []
        while True:
            answer = await self.fetch_one(topic, offset, partition)
            assert answer.error_code == 0
            batches = list(iter_headers(records_of(answer)))
            if not batches:
                return values
            values += values_of(answer, offset)
            offset = batches[-1][1].next_offset

    # Administration.

    async def create_topic(self, name: str, partitions: int = 1, **configs: object) -> bytes:
        """Gives the topic id."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in dotted(configs).items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
        (created,) = (await self.ask(request, 7, CreateTopicsResponse)).topics
        assert created.error_code == 0, created.error_message
        self.ids[name] = created.topic_id
        return created.topic_id

    async def delete_topic(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=60_000)
        (deleted,) = (await self.ask(request, 6, DeleteTopicsResponse)).responses
        assert deleted.error_code == 0, deleted.error_message

    async def alter_topic(self, name: str, **configs: object) -> None:
        await self._alter(2, name, dotted(configs))

    async def alter_broker(self, name: str = "", **configs: object) -> None:
        await self._alter(4, name, dotted(configs))

    async def _alter(self, kind: int, name: str, configs: Mapping[str, str]) -> None:
        changes = [AlterableConfig(name=key, config_operation=0, value=value) for key, value in configs.items()]
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
        request = IncrementalAlterConfigsRequest(resources=[resource])
        (answer,) = (await self.ask(request, 1, IncrementalAlterConfigsResponse)).responses
        assert answer.error_code == 0, answer.error_message

    async def delete_records(self, topic: str, offset: int, partition: int = 0) -> tuple[int, int]:
        """(error code, log start offset)."""
        wanted = DeleteRecordsPartition(partition_index=partition, offset=offset)
        topics = [DeleteRecordsTopic(name=topic, partitions=[wanted])]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=60_000)
        (answer,) = (await self.ask(request, 2, DeleteRecordsResponse)).topics[0].partitions
        return answer.error_code, answer.low_watermark


# Records.


def batch(
    *values: bytes,
    key: bytes | None = b"k",
    at_ms: int = EPOCH_MS,
    producer: tuple[int, int, int] | None = None,
    codec: int = 0,
    size: int = 0,
) -> bytearray:
    """A batch of these values. `producer` is (id, epoch, base sequence); each value gets at least `size` bytes."""
    records = [(at_ms, key, value.ljust(size, b"."), ()) for value in values or (b"v",)]
    if producer is None:
        return build_batch(records, codec=codec)
    producer_id, epoch, sequence = producer
    return build_batch(records, codec=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def records_of(answer: PartitionData) -> bytes:
    return bytes(answer.records or b"")


def values_of(answer: PartitionData, offset: int = 0) -> list[bytes]:
    """The values of a fetched partition's records from an offset on."""
    data = records_of(answer)
    found = []
    for pos, header in iter_headers(data):
        body = decompress(header.codec, body_of(data, pos, header.size), 1 << 26)
        for record in iter_records(body, header.count, header.base_timestamp):
            if header.base_offset + record.offset_delta >= offset:
                found.append(record.value or b"")
    return found


def by_place(answer: FetchResponse) -> dict[Place, PartitionData]:
    """The partitions of an answer by (topic, partition)."""
    return {(topic.topic, one.partition_index): one for topic in answer.responses for one in topic.partitions}


def bases(answer: FetchResponse) -> dict[Place, list[int]]:
    """Base offsets of the batches of each partition that is in an answer."""
    return {
        place: [header.base_offset for _, header in iter_headers(records_of(part))]
        for place, part in by_place(answer).items()
    }


def errors(answer: FetchResponse) -> dict[Place, ErrorCode]:
    return {place: ErrorCode(part.error_code) for place, part in by_place(answer).items()}

"""A client whose requests are exactly what a test passes, and record batches to produce and to read."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from kbroker.common import Buffer
from kbroker.simulation.runtime.environment import EPOCH_MS
from protocol.client import ClientConnection
from protocol.errors import ErrorCode
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
from protocol.schema.message import Message

M = TypeVar("M", bound=Message)
TopicPartition = tuple[str, int]


def dotted(configs: Mapping[str, object]) -> dict[str, str]:
    """Return configs from keyword arguments, with dots for underscores and values as text."""
    return {name.replace("_", "."): _text(value) for name, value in configs.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Client(asyncio.Protocol):
    """One connection to a broker, on the event loop of the test."""

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.ids: dict[str, bytes] = {}
        self.closed: asyncio.Future[Exception | None] = loop.create_future()
        self.bytes_received = 0
        self._connection = ClientConnection("story")
        self._pending: dict[int, tuple[type[Message], asyncio.Future[Any]]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.bytes_received += len(data)
        self._connection.receive(data)
        while (response := self._connection.next_response()) is not None:
            response_class, future = self._pending.pop(response.correlation_id)
            if not future.done():
                future.set_result(response.decode(response_class))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(exc)
        for _, future in self._pending.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the broker closed the connection"))
                future.exception()
        self._pending.clear()

    def close(self) -> None:
        self.transport.abort()

    # Any request.

    def prepare(self, request: Message, version: int, response_class: type[M]) -> "tuple[bytes, asyncio.Future[M]]":
        """Return the frame of a request, which the caller sends, and the future of its response."""
        encoded = self._connection.send(request, version)
        future: asyncio.Future[M] = self.loop.create_future()
        self._pending[encoded.correlation_id] = response_class, future
        return encoded.frame, future

    def send(self, request: Message, version: int, response_class: type[M]) -> "asyncio.Future[M]":
        """Send a request without waiting for its response."""
        if self.closed.done():
            raise ConnectionResetError("the connection was closed before")
        frame, future = self.prepare(request, version, response_class)
        self.transport.write(frame)
        return future

    async def request(self, request: Message, version: int, response_class: type[M]) -> M:
        """Send a request and wait for its response."""
        return await self.send(request, version, response_class)

    # Produce.

    def produce_request(
        self, topic: str, batches: Mapping[int, Buffer | None], *, acks: int = -1, timeout_ms: int = 30_000
    ) -> ProduceRequest:
        parts = [PartitionProduceData(index=index, records=records) for index, records in batches.items()]
        data = TopicProduceData(name=topic, topic_id=self.ids.get(topic, bytes(16)), partition_data=parts)
        return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[data])

    def send_produce(
        self, topic: str, records: Buffer | None, partition: int = 0, *, version: int = 12, **options: Any
    ) -> "asyncio.Future[PartitionProduceResponse]":
        """Produce to one partition, without waiting for the response of that partition."""
        future: asyncio.Future[PartitionProduceResponse] = self.loop.create_future()
        request = self.produce_request(topic, {partition: records}, **options)

        def on_response(response: "asyncio.Future[ProduceResponse]") -> None:
            if future.done():
                return
            if response.exception() is not None:
                future.set_exception(response.exception())  # type: ignore[arg-type]
                future.exception()
            else:
                future.set_result(response.result().responses[0].partition_responses[0])

        self.send(request, version, ProduceResponse).add_done_callback(on_response)
        return future

    async def produce(
        self, topic: str, records: Buffer | None, partition: int = 0, **options: Any
    ) -> PartitionProduceResponse:
        return await self.send_produce(topic, records, partition, **options)

    def encode_produce_acks_0(
        self, topic: str, records: Buffer | None, partition: int = 0, *, version: int = 12
    ) -> bytes:
        """Return the frame of a Produce request that has no response."""
        request = self.produce_request(topic, {partition: records}, acks=0)
        return self._connection.send(request, version, expect_response=False).frame

    def produce_acks_0(self, topic: str, records: Buffer | None, partition: int = 0, version: int = 12) -> None:
        self.transport.write(self.encode_produce_acks_0(topic, records, partition, version=version))

    # Fetch.

    def fetch_request(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 50 << 20,
        partition_max_bytes: int = 1 << 20,
        session: tuple[int, int] = (0, -1),
        forgotten: Iterable[TopicPartition] = (),
        isolation_level: int = 0,
        leader_epoch: int = -1,
    ) -> FetchRequest:
        """`offsets`: fetch offsets by (topic, partition)."""
        topics: dict[str, list[FetchPartition]] = {}
        for (topic, index), offset in offsets.items():
            topics.setdefault(topic, []).append(
                FetchPartition(
                    partition=index,
                    fetch_offset=offset,
                    partition_max_bytes=partition_max_bytes,
                    current_leader_epoch=leader_epoch,
                )
            )
        no_id = bytes(16)
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=session[0],
            session_epoch=session[1],
            topics=[
                FetchTopic(topic=topic, topic_id=self.ids.get(topic, no_id), partitions=partitions)
                for topic, partitions in topics.items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic=topic, topic_id=self.ids.get(topic, no_id), partitions=[index])
                for topic, index in forgotten
            ],
        )

    def send_fetch(
        self, offsets: Mapping[TopicPartition, int], *, version: int = 12, **options: Any
    ) -> "asyncio.Future[FetchResponse]":
        return self.send(self.fetch_request(offsets, **options), version, FetchResponse)

    async def fetch(self, offsets: Mapping[TopicPartition, int], **options: Any) -> FetchResponse:
        return await self.send_fetch(offsets, **options)

    async def fetch_partition(self, topic: str, offset: int, partition: int = 0, **options: Any) -> PartitionData:
        """Fetch one partition outside of any fetch session."""
        response = await self.fetch({(topic, partition): offset}, **options)
        assert response.error_code == 0
        return response.responses[0].partitions[0]

    async def read(self, topic: str, offset: int = 0, partition: int = 0) -> list[bytes]:
        """Return the values of all records from an offset on."""
        values: list[bytes] = []
        while True:
            data = await self.fetch_partition(topic, offset, partition)
            assert data.error_code == 0
            batches = list(iter_headers(records_of(data)))
            if not batches:
                return values
            values += values_of(data, offset)
            offset = batches[-1][1].next_offset

    # Administration.

    async def create_topic(self, name: str, partitions: int = 1, **configs: object) -> bytes:
        """Create a topic; returns its id."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in dotted(configs).items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
        (created,) = (await self.request(request, 7, CreateTopicsResponse)).topics
        assert created.error_code == 0, created.error_message
        self.ids[name] = created.topic_id
        return created.topic_id

    async def delete_topic(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=60_000)
        (deleted,) = (await self.request(request, 6, DeleteTopicsResponse)).responses
        assert deleted.error_code == 0, deleted.error_message

    async def alter_topic(self, name: str, **configs: object) -> None:
        await self._alter(2, name, dotted(configs))

    async def alter_broker(self, name: str = "", **configs: object) -> None:
        await self._alter(4, name, dotted(configs))

    async def _alter(self, kind: int, name: str, configs: Mapping[str, str]) -> None:
        changes = [AlterableConfig(name=key, config_operation=0, value=value) for key, value in configs.items()]
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
        request = IncrementalAlterConfigsRequest(resources=[resource])
        (altered,) = (await self.request(request, 1, IncrementalAlterConfigsResponse)).responses
        assert altered.error_code == 0, altered.error_message

    async def delete_records(self, topic: str, offset: int, partition: int = 0) -> tuple[int, int]:
        """Delete the records before an offset; returns (error code, log start offset)."""
        partitions = [DeleteRecordsPartition(partition_index=partition, offset=offset)]
        topics = [DeleteRecordsTopic(name=topic, partitions=partitions)]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=60_000)
        (deleted,) = (await self.request(request, 2, DeleteRecordsResponse)).topics[0].partitions
        return deleted.error_code, deleted.low_watermark


# Records.


def batch(
    *values: bytes,
    key: bytes | None = b"k",
    at_ms: int = EPOCH_MS,
    producer: tuple[int, int, int] | None = None,
    codec: int = 0,
    size: int = 0,
) -> bytearray:
    """Build a batch of values, each padded to `size` bytes. `producer` is (id, epoch, base sequence)."""
    records = [(at_ms, key, value.ljust(size, b"."), ()) for value in values or (b"v",)]
    if producer is None:
        return build_batch(records, codec=codec)
    producer_id, epoch, sequence = producer
    return build_batch(records, codec=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def records_of(data: PartitionData) -> bytes:
    return bytes(data.records or b"")


def values_of(data: PartitionData, offset: int = 0) -> list[bytes]:
    """Return the values of a fetched partition's records from an offset on, without control records."""
    records = records_of(data)
    values = []
    for pos, header in iter_headers(records):
        if header.is_control:
            continue
        body = decompress(header.codec, body_of(records, pos, header.size), 1 << 26)
        for record in iter_records(body, header.count, header.base_timestamp):
            if header.base_offset + record.offset_delta >= offset:
                values.append(record.value or b"")
    return values


def by_partition(response: FetchResponse) -> dict[TopicPartition, PartitionData]:
    return {(topic.topic, data.partition_index): data for topic in response.responses for data in topic.partitions}


def base_offsets(response: FetchResponse) -> dict[TopicPartition, list[int]]:
    """Return the base offsets of the fetched batches by partition."""
    return {
        partition: [header.base_offset for _, header in iter_headers(records_of(data))]
        for partition, data in by_partition(response).items()
    }


def errors(response: FetchResponse) -> dict[TopicPartition, ErrorCode]:
    return {partition: ErrorCode(data.error_code) for partition, data in by_partition(response).items()}

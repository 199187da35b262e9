"""Commands of clients: topics and records."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from crc32c import crc32c

from kbroker.simulation.runtime.environment import EPOCH_MS
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from protocol.messages.k22_transactions import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.k23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from protocol.messages.k61_describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from protocol.records.batch import CRC_START, body_of, iter_headers
from protocol.records.record import iter_records
from tests.unit.simulation.transcripts.play import CLIENT, Play, code, tp
from tests.unit.simulation.transcripts.table import Table, configs_of, options, seconds
from tests.unit.support.client import Client, batch, records_of

COMMANDS = Table()
LATEST, EARLIEST = -1, -2


def client_command(pattern: str, request: str) -> Callable[[Callable[..., Awaitable[str]]], None]:
    """Add a command that sends a request: the function receives the client and the parameters of the pattern. The
    output names the command `request` when its response is late."""

    def register(send: Callable[..., Awaitable[str]]) -> None:
        @COMMANDS.add(pattern)
        async def run(play: Play, **parameters: Any) -> list[str]:
            return await play.request(request.format(**parameters), lambda client: send(client, **parameters))

    return register


# Topics.


@client_command("create <topic> <configs...>", "create {topic}")
async def create(client: Client, topic: str, configs: list[str]) -> str:
    """Create a topic with one partition, or with n if partitions=n."""
    named = configs_of(configs)
    creatable = CreatableTopic(
        name=topic,
        num_partitions=int(named.pop("partitions", 1)),
        replication_factor=1,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in named.items()],
    )
    response = await client.request(CreateTopicsRequest(topics=[creatable], timeout_ms=60_000), 7, CreateTopicsResponse)
    return _done("created", response.topics[0].error_code)


@client_command("delete <topic>", "delete {topic}")
async def delete(client: Client, topic: str) -> str:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=60_000)
    response = await client.request(request, 6, DeleteTopicsResponse)
    return _done("deleted", response.responses[0].error_code)


def _done(text: str, error: int) -> str:
    return code(error) if error else text


@client_command("delete records of <partition> before <offset>", "delete records of {partition}")
async def delete_records(client: Client, partition: str, offset: str) -> str:
    topic, index = tp(partition)
    error, start = await client.delete_records(topic, int(offset), index)
    return code(error) if error else f"starts at {start}"


@client_command("partitions of <topic>", "partitions of {topic}")
async def partitions(client: Client, topic: str) -> str:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    (described,) = (await client.request(request, 9, MetadataResponse)).topics
    return _done(str(len(described.partitions)), described.error_code)


@client_command("add partitions to <topic> up to <count>", "add partitions to {topic}")
async def add_partitions(client: Client, topic: str, count: str) -> str:
    topic_request = CreatePartitionsTopic(name=topic, count=int(count), assignments=None)
    request = CreatePartitionsRequest(topics=[topic_request], timeout_ms=60_000)
    response = await client.request(request, 3, CreatePartitionsResponse)
    return _done("added", response.results[0].error_code)


@client_command("producer id", "producer id")
async def producer_id(client: Client) -> str:
    """Request a new producer id."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    response = await client.request(request, 4, InitProducerIdResponse)
    return _done(f"producer {response.producer_id}", response.error_code)


# Records.


@COMMANDS.add("produce <partition> <values...>")
async def produce(play: Play, partition: str, values: list[str]) -> list[str]:
    """Produce one batch.

    `producer=7 epoch=0 sequence=0`: as an idempotent producer; `at=-1h`: timestamps relative to now; `key=k`: the key
    of each record; `size=n`: the size of each value; `acks=1`; `by=b`: the client.
    """
    (topic, index), (plain, named) = tp(partition), options(values)
    producer = None
    if "producer" in named:
        producer = int(named["producer"]), int(named.get("epoch", 0)), int(named["sequence"])
    at_ms = play.machine.clock.now_ms() + round(1000 * seconds(named.get("at", "0s")))
    size = int(named.get("size", 0))
    key = named["key"].encode() if "key" in named else None
    data = batch(*(value.encode() for value in plain), key=key, at_ms=at_ms, producer=producer, size=size)

    async def send(client: Client) -> str:
        response = await client.produce(topic, data, index, acks=int(named.get("acks", -1)))
        return code(response.error_code) if response.error_code else f"ok at {response.base_offset}"

    return await play.request(" ".join(["produce", partition, *plain]), send, named.get("by", CLIENT))


@COMMANDS.add("read <partition> <where...>")
async def read(play: Play, partition: str, where: list[str]) -> list[str]:
    """Read from the log start offset, or from=offset, to the end.

    `times`: with timestamps, in seconds since the start of the transcript; `by=b`: the client.
    """
    (topic, index), (plain, named) = tp(partition), options(where)

    async def send(client: Client) -> str:
        offset = int(named.get("from", -1))
        if offset < 0:
            offset = await _list(client, topic, index, EARLIEST)
        lines: list[str] = []
        while True:
            response = await client.fetch_partition(topic, offset, index)
            if response.error_code:
                lines.append(code(response.error_code))
                break
            data = records_of(response)
            if not data:
                break
            if not _add_records(data, offset, lines, "times" in plain):
                break
            *_, (_, last) = iter_headers(data)
            offset = last.next_offset
        return " / ".join(lines) or "nothing"

    return await play.request(f"read {partition}", send, named.get("by", CLIENT))


def _add_records(data: bytes, offset: int, lines: list[str], times: bool) -> bool:
    """Add the records of the batches; return False if a batch is damaged."""
    for pos, header in iter_headers(data):
        if crc32c(data[pos + CRC_START : pos + header.size]) != header.crc:
            lines.append(f"{header.base_offset} has a wrong CRC")
            return False
        for record in iter_records(body_of(data, pos, header.size), header.count, header.base_timestamp):
            at = header.base_offset + record.offset_delta
            if at >= offset:
                value = (record.value or b"").decode().rstrip(".")
                time = f" at {round((record.timestamp - EPOCH_MS) / 1000)} s" if times else ""
                lines.append(f"{at} {value}{time}")
    return True


# Offsets, epochs, producers.


async def _list(client: Client, topic: str, index: int, at: int) -> int:
    topic_request = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=index, timestamp=at)])
    response = await client.request(ListOffsetsRequest(replica_id=-1, topics=[topic_request]), 7, ListOffsetsResponse)
    partition = response.topics[0].partitions[0]
    return partition.offset if not partition.error_code else 0


@client_command("offsets of <partition>", "offsets of {partition}")
async def offsets(client: Client, partition: str) -> str:
    """Show the log start offset and the high watermark."""
    topic, index = tp(partition)
    return f"{await _list(client, topic, index, EARLIEST)} to {await _list(client, topic, index, LATEST)}"


@client_command("offset of <time> in <partition>", "offset of {time} in {partition}")
async def offset_for_time(client: Client, time: str, partition: str) -> str:
    """Show the first offset with at least this timestamp, relative to the start of the transcript; -1 if none."""
    topic, index = tp(partition)
    return f"offset {await _list(client, topic, index, EPOCH_MS + round(1000 * seconds(time)))}"


@client_command("end of epoch <epochs...>", "end of epoch")
async def end_of_epoch(client: Client, epochs: list[str]) -> str:
    """Send OffsetForLeaderEpoch, as a consumer does to check whether its records were truncated.

    Example: `end of epoch 0 1 2 in orders-0`.
    """
    *numbers, _, partition = epochs
    topic, index = tp(partition)
    return ", ".join([await _end_of_epoch(client, topic, index, int(number)) for number in numbers])


async def _end_of_epoch(client: Client, topic: str, index: int, epoch: int) -> str:
    topic_request = OffsetForLeaderTopic(
        topic=topic, partitions=[OffsetForLeaderPartition(partition=index, leader_epoch=epoch)]
    )
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic_request])
    end = (await client.request(request, 4, OffsetForLeaderEpochResponse)).topics[0].partitions[0]
    if end.error_code:
        return code(end.error_code)
    if end.end_offset < 0:
        return f"{epoch} is unknown"
    return f"{end.leader_epoch} ends at {end.end_offset}"


@client_command("producers of <partition>", "producers of {partition}")
async def producers(client: Client, partition: str) -> str:
    topic, index = tp(partition)
    topics = [TopicRequest(name=topic, partition_indexes=[index])]
    response = await client.request(DescribeProducersRequest(topics=topics), 0, DescribeProducersResponse)
    return " / ".join(_producers(response.topics[0].partitions[0].active_producers)) or "none"


def _producers(active: Sequence[ProducerState]) -> list[str]:
    return [f"{each.producer_id}: epoch {each.producer_epoch}, sequence {each.last_sequence}" for each in active]

"""Topics and records, as clients see them."""

from collections.abc import Sequence

from crc32c import crc32c

from kbroker.simulation.runtime.clock import EPOCH_MS
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
from protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
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
    TopicRequest,
)
from protocol.records.batch import CRC_START, body_of, iter_headers
from protocol.records.record import iter_records
from tests.unit.simulation.transcripts.play import CLIENT, Play, code, place
from tests.unit.simulation.transcripts.table import Table, configs_of, options, seconds
from tests.unit.support.client import Client, batch, records_of

COMMANDS = Table()
LATEST, EARLIEST = -1, -2


# Topics.


@COMMANDS.add("create <topic> <configs...>")
async def create(play: Play, topic: str, configs: list[str]) -> list[str]:
    """One partition, unless partitions=n."""
    named = configs_of(configs)
    wanted = CreatableTopic(
        name=topic,
        num_partitions=int(named.pop("partitions", 1)),
        replication_factor=1,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in named.items()],
    )

    async def work(client: Client) -> str:
        answer = await client.request(CreateTopicsRequest(topics=[wanted], timeout_ms=60_000), 7, CreateTopicsResponse)
        return _done("created", answer.topics[0].error_code)

    return await play.ask(f"create {topic}", work)


@COMMANDS.add("delete <topic>")
async def delete(play: Play, topic: str) -> list[str]:
    async def work(client: Client) -> str:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=60_000)
        answer = await client.request(request, 6, DeleteTopicsResponse)
        return _done("deleted", answer.responses[0].error_code)

    return await play.ask(f"delete {topic}", work)


def _done(what: str, error: int) -> str:
    return code(error) if error else what


@COMMANDS.add("delete records of <partition> before <offset>")
async def delete_records(play: Play, partition: str, offset: str) -> list[str]:
    topic, index = place(partition)

    async def work(client: Client) -> str:
        error, start = await client.delete_records(topic, int(offset), index)
        return code(error) if error else f"starts at {start}"

    return await play.ask(f"delete records of {partition}", work)


@COMMANDS.add("partitions of <topic>")
async def partitions(play: Play, topic: str) -> list[str]:
    async def work(client: Client) -> str:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        (found,) = (await client.request(request, 9, MetadataResponse)).topics
        return _done(str(len(found.partitions)), found.error_code)

    return await play.ask(f"partitions of {topic}", work)


@COMMANDS.add("add partitions to <topic> up to <count>")
async def add_partitions(play: Play, topic: str, count: str) -> list[str]:
    wanted = CreatePartitionsTopic(name=topic, count=int(count), assignments=None)

    async def work(client: Client) -> str:
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=60_000)
        answer = await client.request(request, 3, CreatePartitionsResponse)
        return _done("added", answer.results[0].error_code)

    return await play.ask(f"add partitions to {topic}", work)


@COMMANDS.add("producer id")
async def producer_id(play: Play) -> list[str]:
    """A new one."""

    async def work(client: Client) -> str:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = await client.request(request, 4, InitProducerIdResponse)
        return _done(f"producer {answer.producer_id}", answer.error_code)

    return await play.ask("producer id", work)


# Records.


@COMMANDS.add("produce <partition> <values...>")
async def produce(play: Play, partition: str, values: list[str]) -> list[str]:
    """One batch. `producer=7` `epoch=0` `sequence=0`: of an idempotent one; `at=-1h`: timestamps from now;
    `key=k`: of each record; `size=n`: of each value; `acks=1`; `by=b`: another client than usual."""
    (topic, index), (plain, named) = place(partition), options(values)
    producer = None
    if "producer" in named:
        producer = int(named["producer"]), int(named.get("epoch", 0)), int(named["sequence"])
    at_ms = play.machine.clock.now_ms() + round(1000 * seconds(named.get("at", "0s")))
    size = int(named.get("size", 0))
    key = named["key"].encode() if "key" in named else None
    data = batch(*(value.encode() for value in plain), key=key, at_ms=at_ms, producer=producer, size=size)

    async def work(client: Client) -> str:
        answer = await client.produce(topic, data, index, acks=int(named.get("acks", -1)))
        return code(answer.error_code) if answer.error_code else f"ok at {answer.base_offset}"

    return await play.ask(" ".join(["produce", partition, *plain]), work, named.get("by", CLIENT))


@COMMANDS.add("read <partition> <where...>")
async def read(play: Play, partition: str, where: list[str]) -> list[str]:
    """From its start, or from=offset, to the end. `times`: with timestamps, in seconds since the story's beginning;
    `by=b`: another client than usual."""
    (topic, index), (plain, named) = place(partition), options(where)

    async def work(client: Client) -> str:
        offset = int(named.get("from", -1))
        if offset < 0:
            offset = await _list(client, topic, index, EARLIEST)
        found: list[str] = []
        while True:
            answer = await client.fetch_partition(topic, offset, index)
            if answer.error_code:
                found.append(code(answer.error_code))
                break
            data = records_of(answer)
            if not data:
                break
            if not _take(data, offset, found, "times" in plain):
                break
            *_, (_, last) = iter_headers(data)
            offset = last.next_offset
        return " / ".join(found) or "nothing"

    return await play.ask(f"read {partition}", work, named.get("by", CLIENT))


def _take(data: bytes, offset: int, found: list[str], times: bool) -> bool:
    """The records of some batches; false if one is damaged."""
    for pos, header in iter_headers(data):
        if crc32c(data[pos + CRC_START : pos + header.size]) != header.crc:
            found.append(f"{header.base_offset} has a wrong CRC")
            return False
        for record in iter_records(body_of(data, pos, header.size), header.count, header.base_timestamp):
            at = header.base_offset + record.offset_delta
            if at >= offset:
                value = (record.value or b"").decode().rstrip(".")
                time = f" at {round((record.timestamp - EPOCH_MS) / 1000)} s" if times else ""
                found.append(f"{at} {value}{time}")
    return True


# Questions.


async def _list(client: Client, topic: str, index: int, at: int) -> int:
    wanted = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=index, timestamp=at)])
    answer = await client.request(ListOffsetsRequest(replica_id=-1, topics=[wanted]), 7, ListOffsetsResponse)
    found = answer.topics[0].partitions[0]
    return found.offset if not found.error_code else 0


@COMMANDS.add("offsets of <partition>")
async def offsets(play: Play, partition: str) -> list[str]:
    """Where it begins, and the offset that comes next."""
    topic, index = place(partition)

    async def work(client: Client) -> str:
        return f"{await _list(client, topic, index, EARLIEST)} to {await _list(client, topic, index, LATEST)}"

    return await play.ask(f"offsets of {partition}", work)


@COMMANDS.add("offset of <time> in <partition>")
async def offset_for_time(play: Play, time: str, partition: str) -> list[str]:
    """The first that is not earlier, in time since the story's beginning; -1: none."""
    topic, index = place(partition)

    async def work(client: Client) -> str:
        return f"offset {await _list(client, topic, index, EPOCH_MS + round(1000 * seconds(time)))}"

    return await play.ask(f"offset of {time} in {partition}", work)


@COMMANDS.add("end of epoch <epochs...>")
async def end_of_epoch(play: Play, epochs: list[str]) -> list[str]:
    """`end of epoch 0 1 2 in orders-0`: what consumers ask who may have read what is lost."""
    *numbers, _, partition = epochs
    topic, index = place(partition)

    async def work(client: Client) -> str:
        return ", ".join([await _end_of_epoch(client, topic, index, int(number)) for number in numbers])

    return await play.ask(f"end of epoch in {partition}", work)


async def _end_of_epoch(client: Client, topic: str, index: int, epoch: int) -> str:
    wanted = OffsetForLeaderTopic(
        topic=topic, partitions=[OffsetForLeaderPartition(partition=index, leader_epoch=epoch)]
    )
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[wanted])
    found = (await client.request(request, 4, OffsetForLeaderEpochResponse)).topics[0].partitions[0]
    if found.error_code:
        return code(found.error_code)
    if found.end_offset < 0:
        return f"{epoch} is not known"
    return f"{found.leader_epoch} ends at {found.end_offset}"


@COMMANDS.add("producers of <partition>")
async def producers(play: Play, partition: str) -> list[str]:
    topic, index = place(partition)

    async def work(client: Client) -> str:
        wanted = [TopicRequest(name=topic, partition_indexes=[index])]
        answer = await client.request(DescribeProducersRequest(topics=wanted), 0, DescribeProducersResponse)
        return " / ".join(_producers(answer.topics[0].partitions[0].active_producers)) or "none"

    return await play.ask(f"producers of {partition}", work)


def _producers(active: Sequence[object]) -> list[str]:
    return [f"{one.producer_id}: epoch {one.producer_epoch}, sequence {one.last_sequence}" for one in active]  # type: ignore[attr-defined]

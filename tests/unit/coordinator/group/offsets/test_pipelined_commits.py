"""OffsetCommits of one connection that arrive with one read, on a whole broker."""

import asyncio
from asyncio import Future

from kbroker.common import TopicPartition
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.records.batch import iter_headers
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import Machine, broker_test

OFFSETS = TopicPartition(GROUP_METADATA_TOPIC, 0)
COMMIT_VERSION, FETCH_VERSION = 7, 7


async def client_of_group(m: Machine) -> Client:
    """Return a client for which the topics and the coordinator exist."""
    client = await m.client()
    await client.create_topic("t")
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    while (await client.request(request, 4, FindCoordinatorResponse)).coordinators[0].error_code:
        await asyncio.sleep(0.1)
    while (await commits(client, 0))[0]:
        await asyncio.sleep(0.1)
    return client


def prepare_commits(client: Client, *offsets: int) -> tuple[list[bytes], list[Future[OffsetCommitResponse]]]:
    """Return a frame for each offset, and the futures of the responses."""
    frames, futures = [], []
    for offset in offsets:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
        frame, future = client.prepare(
            OffsetCommitRequest(group_id="g", topics=topics), COMMIT_VERSION, OffsetCommitResponse
        )
        frames.append(frame)
        futures.append(future)
    return frames, futures


def send_commits(client: Client, *offsets: int) -> list[Future[OffsetCommitResponse]]:
    """Send a commit of each offset, all with one write."""
    frames, futures = prepare_commits(client, *offsets)
    client.transport.write(b"".join(frames))
    return futures


async def commits(client: Client, *offsets: int) -> list[int]:
    """Return the error code of each commit."""
    responses = await asyncio.gather(*send_commits(client, *offsets))
    return [response.topics[0].partitions[0].error_code for response in responses]


def fetch_request() -> OffsetFetchRequest:
    return OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])


async def committed_offset(client: Client) -> int:
    response = await client.request(fetch_request(), FETCH_VERSION, OffsetFetchResponse)
    return response.topics[0].partitions[0].committed_offset


def batch_sizes(m: Machine, offset: int) -> list[int]:
    """Return the number of records of each batch in the log from an offset on."""
    data = m.broker.services.replicas.read_internal_blocking(OFFSETS, offset, 1 << 20)
    return [header.count for _, header in iter_headers(data)]


@broker_test
async def test_commits_of_one_read_share_an_append(m: Machine) -> None:
    client = await client_of_group(m)
    end_offset = m.partition(*OFFSETS).log.log_end_offset
    assert await commits(client, 1, 2, 3) == [0, 0, 0]
    assert batch_sizes(m, end_offset) == [3]
    assert await committed_offset(client) == 3


@broker_test
async def test_a_fetch_behind_the_commits_sees_them(m: Machine) -> None:
    client = await client_of_group(m)
    await client.alter_topic(GROUP_METADATA_TOPIC, flush_before_ack=True)
    m.threads.held.add("flush_blocking")
    frames, futures = prepare_commits(client, 1, 2)
    fetch_frame, fetched = client.prepare(fetch_request(), FETCH_VERSION, OffsetFetchResponse)
    later_frames, later = prepare_commits(client, 3)
    client.transport.write(b"".join([*frames, fetch_frame, *later_frames]))
    await asyncio.sleep(1)
    m.threads.release("flush_blocking")
    assert (await fetched).topics[0].partitions[0].committed_offset == 2
    await asyncio.gather(*futures, *later)
    assert await committed_offset(client) == 3


@broker_test
async def test_no_commit_is_acknowledged_before_the_shared_append_is_synced(m: Machine) -> None:
    client, other = await client_of_group(m), await m.client()
    await client.alter_topic(GROUP_METADATA_TOPIC, flush_before_ack=True)
    await commits(client, 1)
    m.threads.held.add("flush_blocking")
    first = send_commits(client, 2, 3)
    await asyncio.sleep(1)
    second = send_commits(client, 4)
    await asyncio.sleep(1)
    assert not any(future.done() for future in first + second)
    assert await committed_offset(other) == 1
    m.threads.release("flush_blocking")
    await asyncio.gather(*first, *second)
    assert await committed_offset(other) == 4


@broker_test(offsets_commit_timeout_ms=2_000)
async def test_the_timeout_of_commits_that_wait(m: Machine) -> None:
    client, other = await client_of_group(m), await m.client()
    await client.alter_topic(GROUP_METADATA_TOPIC, flush_before_ack=True)
    await commits(client, 1)
    m.threads.held.add("flush_blocking")
    assert await commits(client, 2, 3) == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    m.threads.release("flush_blocking")
    await asyncio.sleep(1)
    assert await committed_offset(other) == 3


@broker_test
async def test_commits_of_a_closed_connection_are_written(m: Machine) -> None:
    client, other = await client_of_group(m), await m.client()
    await client.alter_topic(GROUP_METADATA_TOPIC, flush_before_ack=True)
    m.threads.held.add("flush_blocking")
    send_commits(client, 1, 2)
    await asyncio.sleep(1)
    client.close()
    await asyncio.sleep(1)
    m.threads.release("flush_blocking")
    await asyncio.sleep(1)
    assert await committed_offset(other) == 2

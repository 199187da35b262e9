"""Responses that are sent again to equal requests: only while nothing has changed that they depend on."""

from itertools import count
from random import Random
from typing import Any

import pytest

from kbroker.queues.closing.forwarded_batches import ClosingFilter
from kbroker.replica.fetch.fetch_response_cache import MAX_BYTES, FetchResponseCache
from kbroker.storage.producers.transactions import OngoingTransactions
from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import PartitionData
from protocol.records.batch import NO_LEADER_EPOCH
from tests.sampling import third_of
from tests.unit.support.client import Client, batch, records_of, values_of
from tests.unit.support.log_lab import forget_positions
from tests.unit.support.simulated_broker import Machine, broker_test

HIDDEN_BATCHES = ClosingFilter(NO_LEADER_EPOCH)

# Each of these numbers makes a request different from all others.
_unique = count(1)


def recent(m: Machine) -> FetchResponseCache:
    return m.broker.services.fetching.response_cache


def fields(data: PartitionData) -> tuple[object, ...]:
    offsets = data.high_watermark, data.last_stable_offset, data.log_start_offset
    return data.error_code, *offsets, bytes(records_of(data)), data.aborted_transactions


async def is_kept(m: Machine, client: Client, **options: Any) -> bool:
    """Send the same request twice, and return whether a third one would get a kept response."""
    before = len(recent(m))
    for _ in range(2):
        assert (await client.fetch_partition("t", 0, **options)).error_code == 0
    return len(recent(m)) > before


async def topic_with_batch(m: Machine) -> Client:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a", size=2000))
    return client


@broker_test
@pytest.mark.parametrize("version", [4, 6, 7, 11, 12, 13, 18])
async def test_the_second_of_two_equal_requests_is_kept(m: Machine, version: int) -> None:
    client, other = await topic_with_batch(m), await m.client()
    other.ids = client.ids
    first = await client.fetch_partition("t", 0, version=version)
    assert len(recent(m)) == 0
    await client.fetch_partition("t", 0, version=version)
    assert len(recent(m)) == 1
    bytes_out = dict(m.broker.services.fetching.bytes_out)
    # The file is not read any more.
    m.partition("t").log.positions = None  # type: ignore[assignment]
    assert fields(await other.fetch_partition("t", 0, version=version)) == fields(first)
    (before,), (after,) = bytes_out.values(), m.broker.services.fetching.bytes_out.values()
    assert after - before == len(records_of(first))
    forget_positions(m.partition("t").log)


@broker_test
async def test_requests_of_one_read_get_their_responses_in_order(m: Machine) -> None:
    client = await topic_with_batch(m)
    await client.produce("t", batch(b"b", size=2000))
    for _ in range(2):
        await client.fetch_partition("t", 0)
    sent = [client.send_fetch({("t", 0): offset}, max_wait_ms=0) for offset in (0, 1, 0, 1, 0)]
    first = [values_of((await response).responses[0].partitions[0])[0][:1] for response in sent]
    # From offset 0 on, both batches are returned.
    assert first == [b"a", b"b", b"a", b"b", b"a"]


@broker_test
async def test_what_may_depend_on_more_is_not_kept(m: Machine) -> None:
    client = await topic_with_batch(m)
    await client.create_topic("u")
    await client.produce("u", batch(b"u"))
    for _ in range(3):
        assert (await client.fetch({("t", 0): 0, ("u", 0): 0})).responses
        assert (await client.fetch({("t", 0): 0}, session=(0, 0))).error_code == 0
        # An error, and a response without records.
        assert (await client.fetch_partition("t", 5)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert not records_of(await client.fetch_partition("t", 1))
    m.broker.services.fetching.unsent_bytes = 1
    assert not await is_kept(m, client)
    m.broker.services.fetching.unsent_bytes = 0
    m.partition("t").read_filter = HIDDEN_BATCHES
    assert not await is_kept(m, client, partition_max_bytes=1 << 19)
    m.partition("t").read_filter = None
    await client.produce("t", batch(b"x", size=200_000))
    assert not await is_kept(m, client, partition_max_bytes=1 << 18)
    assert await is_kept(m, client, partition_max_bytes=1 << 16)


@broker_test
async def test_no_kept_response_while_clients_do_not_read(m: Machine) -> None:
    client = await topic_with_batch(m)
    await client.produce("t", batch(b"b", size=2000))
    for _ in range(3):
        assert len(values_of(await client.fetch_partition("t", 0))) == 2
    m.broker.services.fetching.unsent_bytes = 48 << 20
    assert len(values_of(await client.fetch_partition("t", 0))) == 1
    m.broker.services.fetching.unsent_bytes = 0
    assert len(values_of(await client.fetch_partition("t", 0))) == 2


@broker_test
async def test_the_memory_is_bounded(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a", size=100_000))
    for limit in range(1, 60):
        for _ in range(2):
            await client.fetch_partition("t", 0, partition_max_bytes=limit)
    assert MAX_BYTES - 101_000 < recent(m).size <= MAX_BYTES
    assert len(recent(m)) < 59
    # An entry that is no longer valid is dropped by the next such request.
    size = recent(m).size
    await client.delete_topic("t")
    await client.fetch_partition("t", 0, partition_max_bytes=59)
    assert recent(m).size < size - 100_000


@broker_test
@pytest.mark.parametrize("seed", third_of(range(12)))
async def test_repeated_requests_get_what_new_requests_get(m: Machine, seed: int) -> None:
    random, client = Random(seed), await m.client()
    kept = 0
    await client.create_topic("t", segment_bytes=1 << 20)
    for step in range(30):
        change = random.choice(CHANGES)
        await change(m, client, random, step)
        options = {"isolation_level": random.choice((0, 1)), "partition_max_bytes": random.choice((1, 3000, 1 << 20))}
        for offset in (0, max(m.partition("t").log.log_start_offset, m.partition("t").high_watermark - 2)):
            expected = await client.fetch_partition(
                "t", offset, max_wait_ms=0, max_bytes=(50 << 20) + next(_unique), **options
            )
            for _ in range(3):
                repeated = await client.fetch_partition("t", offset, max_wait_ms=0, **options)
                assert fields(repeated) == fields(expected), (seed, step, change.__name__)
            kept = max(kept, len(recent(m)))
    assert kept


async def append(m: Machine, client: Client, random: Random, step: int) -> None:
    await client.produce("t", batch(b"%d" % step, size=random.choice((10, 2000))))


async def nothing(m: Machine, client: Client, random: Random, step: int) -> None:
    pass


async def begin_transaction(m: Machine, client: Client, random: Random, step: int) -> None:
    """Hold the last stable offset back, and let it advance again."""
    # Logs without transactions share an object.
    transactions = m.partition("t").log.producers.transactions = OngoingTransactions()
    transactions.first_unstable_offset = random.choice((1, m.partition("t").high_watermark, 1 << 62))


async def delete_records(m: Machine, client: Client, random: Random, step: int) -> None:
    partition = m.partition("t")
    offset = random.randint(partition.log.log_start_offset, partition.high_watermark)
    assert (await client.delete_records("t", offset))[0] == 0


async def remove_segments(m: Machine, client: Client, random: Random, step: int) -> None:
    log = m.partition("t").log
    log.roll(m.now_ms)
    await client.delete_records("t", m.partition("t").high_watermark)
    log.enforce_retention(m.now_ms, m.partition("t").high_watermark)


async def truncate_and_append(m: Machine, client: Client, random: Random, step: int) -> None:
    """The broker follows another leader, which removes records, and leads again. Other records get their offsets."""
    partition = m.partition("t")
    end = partition.log.log_end_offset
    offset = random.randint(partition.log.log_start_offset, end)
    partition.is_leader = False
    for _ in range(3):
        data = await client.fetch_partition("t", partition.log.log_start_offset)
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await partition.follower_truncate(offset)
    partition.is_leader = True
    for number in range(end - offset):
        await client.produce("t", batch(b"%d %d" % (step, number), size=10))


async def change_config(m: Machine, client: Client, random: Random, step: int) -> None:
    await client.alter_topic("t", retention_ms=10**9 + step)


async def recreate(m: Machine, client: Client, random: Random, step: int) -> None:
    end = m.partition("t").high_watermark
    await client.delete_topic("t")
    for _ in range(2):
        missing = await client.fetch({("t", 0): 0}, version=12)
        assert missing.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await client.create_topic("t", segment_bytes=1 << 20)
    for number in range(min(end, 20)):
        await client.produce("t", batch(b"new %d %d" % (step, number), size=10))


CHANGES = (
    append,
    append,
    append,
    nothing,
    begin_transaction,
    delete_records,
    remove_segments,
    truncate_and_append,
    change_config,
    recreate,
)

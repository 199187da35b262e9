"""Stories of share consumers on a broker; the share coordinator is one in memory."""

from __future__ import annotations

import asyncio

import pytest

from kbroker.coordinator.share.share_partition_state import DeliveryState, SharePartitionKey
from kbroker.share.start_offset import duration_ms
from protocol.errors import ErrorCode
from protocol.records.batch import build_batch
from tests.unit.support.share_consumer import (
    ShareConsumer,
    StateCoordinator,
    acquired,
    alter_group,
    install,
    records_of,
)
from tests.unit.support.simulated_broker import Machine, broker_test

EARLIEST = {"share_auto_offset_reset": "earliest"}


async def start(machine: Machine, count: int = 10, **configs: str) -> tuple[StateCoordinator, bytes]:
    """Create a topic with batches of ten records, and a group that begins with the first."""
    coordinator = StateCoordinator()
    install(machine, coordinator)
    client = await machine.client()
    topic_id = await client.create_topic("t")
    await alter_group(client, "g", **(EARLIEST | configs))
    await produce(machine, count)
    return coordinator, topic_id


async def produce(machine: Machine, count: int, topic: str = "t") -> None:
    client = await machine.client("producer")
    for first in range(0, count, 10):
        size = min(10, count - first)
        batch = build_batch([(machine.now_ms, b"k%d" % n, b"v%d" % n, ()) for n in range(first, first + size)])
        assert (await client.produce(topic, batch)).error_code == 0
    client.close()


def key_of(topic_id: bytes) -> SharePartitionKey:
    return SharePartitionKey("g", topic_id, 0)


@broker_test
async def test_a_member_acquires_acknowledges_and_gets_the_rest_again(machine: Machine) -> None:
    coordinator, topic_id = await start(machine, 30)
    consumer = await ShareConsumer.open(machine, topic_id)

    data = await consumer.fetch(max_records=15, batch_size=10, max_wait_ms=500)
    # Whole batches of the log, until there are enough records.
    assert acquired(data) == [(0, 9, 1), (10, 19, 1)]
    assert [record.value for record in records_of(data.records).values()] == [b"v%d" % n for n in range(20)]

    assert (await consumer.acknowledge((0, 4, 1), (5, 9, 1, 2, 3, 0, 2))).error_code == 0
    states = coordinator.states(key_of(topic_id))
    assert coordinator.starts[key_of(topic_id)] == 6
    assert {n: states[n] for n in (6, 7, 8, 9)} == {
        6: DeliveryState.AVAILABLE, 7: DeliveryState.ARCHIVED, 8: DeliveryState.ARCHIVED, 9: DeliveryState.AVAILABLE
    }  # fmt: skip
    # What was released comes again, before new records.
    assert await consumer.acquire(max_wait_ms=500, max_records=3) == [(6, 6, 2), (9, 9, 2), (20, 29, 1)]
    data = await consumer.fetch((6, 6, 1), (9, 9, 1), (10, 29, 1))
    assert (data.acknowledge_error_code, acquired(data)) == (0, [])
    assert coordinator.starts[key_of(topic_id)] == 30


@broker_test
async def test_what_was_not_acquired_cannot_be_acknowledged(machine: Machine) -> None:
    _, topic_id = await start(machine)
    consumer = await ShareConsumer.open(machine, topic_id)
    other = await ShareConsumer.open(machine, topic_id, member="other")
    assert await consumer.acquire(max_records=5, share_acquire_mode=1, max_wait_ms=500) == [(0, 4, 1)]
    assert await other.acquire(max_records=2, share_acquire_mode=1, max_wait_ms=500) == [(5, 6, 1)]

    state, request = ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST
    for acknowledged, code in [
        (((5, 6, 1),), state),  # another member's
        (((4, 7, 1),), request),  # the end of what was acquired
        (((50, 51, 1),), request),
        (((0, 1, 1), (1, 2, 1)), state),  # twice
        (((2, 3, 1), (0, 1, 1)), request),  # not in order
        (((0, 2, 1, 1),), request),  # types that are not one for each
        (((0, 2),), request),
        (((2, 0, 1),), request),
        (((0, 0, 9),), request),
        (((0, 0, 4),), request),  # a renewal in a request that is none
    ]:
        assert (await consumer.acknowledge(*acknowledged)).error_code == code, acknowledged
    # All or nothing: none of these has changed anything.
    assert (await consumer.acknowledge((0, 4, 1))).error_code == 0
    assert (await consumer.acknowledge((0, 4, 1))).error_code == 0  # below the start: ignored


@broker_test
async def test_a_lock_expires_unless_it_is_renewed(machine: Machine) -> None:
    coordinator, topic_id = await start(machine, share_record_lock_duration_ms="15000")
    consumer = await ShareConsumer.open(machine, topic_id)
    other = await ShareConsumer.open(machine, topic_id, member="other")
    assert await consumer.acquire(max_wait_ms=500) == [(0, 9, 1)]
    await asyncio.sleep(10)
    renewal = await consumer.fetch((0, 3, 4), is_renew_ack=True, max_bytes=0, min_bytes=0, max_records=0)
    assert (renewal.acknowledge_error_code, acquired(renewal)) == (0, [])
    # The fetch that waits is completed when the locks of the others expire.
    began = machine.elapsed_ms
    assert await other.acquire(max_wait_ms=60_000) == [(4, 9, 2)]
    assert 4900 < machine.elapsed_ms - began < 5200
    assert (await consumer.acknowledge((4, 9, 1))).error_code == ErrorCode.INVALID_RECORD_STATE
    assert (await consumer.acknowledge((0, 3, 1))).error_code == 0
    assert coordinator.starts[key_of(topic_id)] == 4


@broker_test
async def test_records_are_archived_after_the_last_delivery_which_is_alone(machine: Machine) -> None:
    coordinator, topic_id = await start(machine, 8, share_delivery_count_limit="4")
    consumer = await ShareConsumer.open(machine, topic_id)
    for delivery in (1, 2):
        assert await consumer.acquire(max_wait_ms=500) == [(0, 7, delivery)]
        assert (await consumer.acknowledge((0, 7, 2))).error_code == 0
    # From half of the limit on, fewer records at a time.
    assert await consumer.acquire(max_wait_ms=500) == [(0, 3, 3)]
    assert (await consumer.acknowledge((0, 3, 2))).error_code == 0
    for offset in (0, 1):
        assert await consumer.acquire(max_wait_ms=500) == [(offset, offset, 4)]
        assert (await consumer.acknowledge((offset, offset, 2))).error_code == 0
    assert coordinator.starts[key_of(topic_id)] == 2


@broker_test
async def test_a_closed_session_releases_its_records(machine: Machine) -> None:
    _, topic_id = await start(machine, 20)
    first = await ShareConsumer.open(machine, topic_id, member="first")
    second = await ShareConsumer.open(machine, topic_id, member="second")
    third = await ShareConsumer.open(machine, topic_id, member="third")
    assert await first.acquire(max_records=10, max_wait_ms=500) == [(0, 9, 1)]
    assert await second.acquire(max_records=10, max_wait_ms=500) == [(10, 19, 1)]
    waiting = third.send_fetch(max_wait_ms=60_000)
    first.epoch = -1
    await first.fetch((0, 1, 1))
    assert acquired((await waiting).responses[0].partitions[0]) == [(2, 9, 2)]
    waiting = third.send_fetch(max_wait_ms=60_000)
    second.client.close()
    assert acquired((await waiting).responses[0].partitions[0]) == [(10, 19, 2)]
    assert len(machine.broker.services.share.sessions) == 1


@broker_test(group_share_max_share_sessions=2, group_share_max_size=2)
async def test_sessions_have_epochs(machine: Machine) -> None:
    _, topic_id = await start(machine)
    consumer = await ShareConsumer.open(machine, topic_id)

    async def code(epoch: int, *acknowledged: tuple[int, ...], **fields: object) -> int:
        consumer.epoch = epoch
        return (await consumer.send_fetch(*acknowledged, **fields)).error_code

    assert await code(1) == await code(-1) == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert await code(0, (0, 0, 1)) == ErrorCode.INVALID_REQUEST
    assert await code(0) == await code(1) == 0
    assert await code(1) == await code(3) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert await code(2, is_renew_ack=True) == ErrorCode.INVALID_REQUEST
    assert await code(2, group_id=None) == await code(2, member_id="") == ErrorCode.INVALID_REQUEST
    assert await code(0, member_id="second") == 0
    assert await code(0, member_id="third") == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert await code(-1) == 0
    assert await code(-1) == ErrorCode.SHARE_SESSION_NOT_FOUND


@broker_test
async def test_an_acknowledgement_that_cannot_be_stored_is_rolled_back(machine: Machine) -> None:
    coordinator, topic_id = await start(machine)
    consumer = await ShareConsumer.open(machine, topic_id)
    other = await ShareConsumer.open(machine, topic_id, member="other")
    assert await consumer.acquire(max_wait_ms=500) == [(0, 9, 1)]
    coordinator.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await consumer.acknowledge((0, 4, 1))).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    # The locks expire while nothing can be stored: nobody gets the records before their count is stored.
    waiting = other.send_fetch(max_wait_ms=120_000)
    await asyncio.sleep(60)
    assert not waiting.done()
    coordinator.refusal = None
    assert acquired((await waiting).responses[0].partitions[0]) == [(0, 9, 2)]


@broker_test
async def test_nobody_acquires_a_record_whose_acknowledgement_is_being_stored(machine: Machine) -> None:
    coordinator, topic_id = await start(machine)
    consumer = await ShareConsumer.open(machine, topic_id)
    other = await ShareConsumer.open(machine, topic_id, member="other")
    assert await consumer.acquire(max_wait_ms=500) == [(0, 9, 1)]
    coordinator.held = asyncio.get_running_loop().create_future()
    acknowledging = asyncio.ensure_future(consumer.acknowledge((0, 4, 2), (5, 9, 1)))
    # The locks expire meanwhile.
    await asyncio.sleep(40)
    assert await other.acquire(max_wait_ms=1000) == []
    coordinator.held.set_result(None)
    assert (await acknowledging).error_code == 0
    assert await other.acquire(max_wait_ms=1000) == [(0, 4, 2)]


@broker_test
async def test_the_end_of_a_session_releases_nothing_of_the_next_one(machine: Machine) -> None:
    coordinator, topic_id = await start(machine, 20)
    consumer = await ShareConsumer.open(machine, topic_id)
    assert await consumer.acquire(max_records=10, max_wait_ms=500) == [(0, 9, 1)]
    coordinator.held = asyncio.get_running_loop().create_future()
    consumer.epoch = -1
    closing = asyncio.ensure_future(consumer.acknowledge((0, 9, 1)))
    await asyncio.sleep(1)
    # The member does not wait for the response.
    again = await ShareConsumer.open(machine, topic_id)
    assert await again.acquire(max_records=10, max_wait_ms=500) == [(10, 19, 1)]
    coordinator.held.set_result(None)
    assert (await closing).error_code == 0
    other = await ShareConsumer.open(machine, topic_id, member="other")
    assert await other.acquire(max_wait_ms=500) == []
    assert (await again.acknowledge((10, 19, 1))).error_code == 0


@broker_test
async def test_a_new_leader_continues_with_the_stored_state(machine: Machine) -> None:
    coordinator, topic_id = await start(machine)
    consumer = await ShareConsumer.open(machine, topic_id)
    assert await consumer.acquire(max_wait_ms=500) == [(0, 9, 1)]
    assert (await consumer.acknowledge((2, 5, 1), (6, 6, 2))).error_code == 0
    await machine.restart()
    install(machine, coordinator)
    consumer = await ShareConsumer.open(machine, topic_id)
    # Locks and deliveries that were not stored are forgotten.
    assert await consumer.acquire(max_wait_ms=500) == [(0, 1, 1), (6, 6, 2), (7, 9, 1)]


@broker_test
async def test_the_window_is_limited_and_delayed_records_do_not_hold_it(machine: Machine) -> None:
    _, topic_id = await start(machine, 250, share_partition_max_record_locks="100")
    consumer = await ShareConsumer.open(machine, topic_id)
    assert sum(last - first + 1 for first, last, _ in await consumer.acquire(max_wait_ms=500)) == 100
    assert await consumer.acquire(max_wait_ms=500) == []
    assert (await consumer.acknowledge((1, 99, 1))).error_code == 0
    assert await consumer.acquire(max_wait_ms=500) == [], "the first record holds the window"
    assert (await consumer.acknowledge((0, 0, 1))).error_code == 0
    assert sum(last - first + 1 for first, last, _ in await consumer.acquire(max_wait_ms=500)) == 100


@broker_test
async def test_a_released_record_waits_for_its_delay(machine: Machine) -> None:
    coordinator, topic_id = await start(
        machine, 30, kbroker_share_retry_delays_ms="1000,60000", share_partition_max_record_locks="100"
    )
    consumer = await ShareConsumer.open(machine, topic_id)
    assert await consumer.acquire(max_wait_ms=500, max_records=10) == [(0, 9, 1)]
    assert (await consumer.acknowledge((0, 0, 2), (1, 9, 1))).error_code == 0
    began = machine.elapsed_ms
    assert await consumer.acquire(max_records=10) == [(10, 19, 1)], "others do not wait"
    assert (await consumer.acknowledge((10, 19, 1))).error_code == 0
    assert await consumer.acquire(max_wait_ms=5000, max_records=1, share_acquire_mode=1) == [(20, 20, 1)]
    assert await consumer.acquire(max_wait_ms=5000) != []
    assert (await consumer.acknowledge((20, 29, 1))).error_code == 0
    assert await consumer.acquire(max_wait_ms=5000) == [(0, 0, 2)]
    assert 990 < machine.elapsed_ms - began < 1100
    assert (await consumer.acknowledge((0, 0, 2))).error_code == 0
    # The time is stored: the next leader waits for the rest of it.
    await asyncio.sleep(30)
    await machine.restart()
    install(machine, coordinator)
    consumer = await ShareConsumer.open(machine, topic_id)
    began = machine.elapsed_ms
    assert await consumer.acquire(max_wait_ms=60_000) == [(0, 0, 3)]
    assert 20_000 < machine.elapsed_ms - began < 31_000


@broker_test
async def test_holes_are_archived_by_the_broker(machine: Machine) -> None:
    coordinator, _ = await start(machine, 0)
    client = await machine.client()
    topic_id = await client.create_topic("u", kbroker_ttl_enable=True)
    for n in range(40):
        headers = ((b"TTL_MS", b"100"),) if n % 10 else ()
        assert (await client.produce("u", build_batch([(machine.now_ms, None, b"%d" % n, headers)]))).error_code == 0
    await asyncio.sleep(1)
    consumer = await ShareConsumer.open(machine, topic_id)
    assert await consumer.acquire(max_wait_ms=500) == [(0, 0, 1), (10, 10, 1), (20, 20, 1), (30, 30, 1)]
    for offset in (0, 10, 20):
        assert (await consumer.acknowledge((offset, offset, 1))).error_code == 0
    key = SharePartitionKey("g", topic_id, 0)
    assert coordinator.starts[key] == 30
    assert (await consumer.acknowledge((30, 30, 1))).error_code == 0
    assert coordinator.starts[key] == 40


@broker_test
async def test_records_that_retention_has_deleted_are_archived(machine: Machine) -> None:
    coordinator, topic_id = await start(machine, 30)
    client = await machine.client()
    consumer = await ShareConsumer.open(machine, topic_id)
    assert await consumer.acquire(max_wait_ms=500, max_records=10) == [(0, 9, 1)]
    await client.delete_records("t", 25)
    assert await consumer.acquire(max_wait_ms=500) == [(25, 29, 1)]
    # The member may still say what it did with what it has.
    assert (await consumer.acknowledge((0, 9, 1), (25, 29, 1))).error_code == 0
    assert coordinator.starts[key_of(topic_id)] == 30


@broker_test
async def test_a_rejected_record_becomes_a_dead_letter(machine: Machine) -> None:
    coordinator, topic_id = await start(
        machine,
        errors_deadletterqueue_topic_name="dlq.t",
        errors_deadletterqueue_copy_record_enable="true",
        share_delivery_count_limit="2",
    )
    consumer = await ShareConsumer.open(machine, topic_id)
    key, client = key_of(topic_id), consumer.client
    assert await consumer.acquire(max_wait_ms=500) == [(0, 9, 1)]
    assert (await consumer.acknowledge((0, 0, 3), (1, 1, 2), (2, 9, 1))).error_code == 0
    assert await consumer.acquire(max_wait_ms=500) == [(1, 1, 2)]
    assert (await consumer.acknowledge((1, 1, 2))).error_code == 0
    # The topic does not exist: the records wait, and are not given up.
    await asyncio.sleep(300)
    assert coordinator.states(key)[0] is coordinator.states(key)[1] is DeliveryState.ARCHIVING
    await machine.restart()
    install(machine, coordinator)
    client = await machine.client()
    await client.create_topic("dlq.t", errors_deadletterqueue_group_enable=True)
    consumer = await ShareConsumer.open(machine, topic_id)
    await consumer.acquire(max_wait_ms=500)
    await machine.until(lambda: coordinator.starts[key] == 10, 120)
    letters = records_of((await client.fetch_partition("dlq.t", 0)).records)
    assert [(letter.key, letter.value) for letter in letters.values()] == [(b"k0", b"v0"), (b"k1", b"v1")]
    headers = [
        {name.decode(): (value or b"").decode("latin-1") for name, value in each.headers} for each in letters.values()
    ]
    assert [each["__dlq.errors.delivery.count"] for each in headers] == ["1", "2"]
    assert headers[0]["__dlq.errors.topic"] == "t"
    assert headers[1]["__dlq.errors.message"] == "Offset delivery count exceeded the threshold."


@broker_test
async def test_an_unknown_topic_has_an_error_of_its_own(machine: Machine) -> None:
    await start(machine)
    consumer = await ShareConsumer.open(machine, bytes(15) + b"\7")
    assert (await consumer.fetch()).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert (await consumer.acknowledge((0, 0, 1))).error_code == ErrorCode.UNKNOWN_TOPIC_ID


@broker_test
async def test_without_share_groups_in_the_cluster_the_apis_are_not_supported(machine: Machine) -> None:
    install(machine, StateCoordinator(), share_version=0)
    consumer = await ShareConsumer.open(machine, bytes(16))
    assert (await consumer.send_fetch()).error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("reset", "expected"), [("earliest", [(0, 29, 1)]), ("latest", []), ("by_duration:PT1H", [(10, 29, 1)])]
)
@broker_test
async def test_a_group_begins_where_its_config_says(
    machine: Machine, reset: str, expected: list[tuple[int, int, int]]
) -> None:
    coordinator, topic_id = await start(machine, 10, share_auto_offset_reset=reset)
    await asyncio.sleep(2 * 3600)
    await produce(machine, 20)
    consumer = await ShareConsumer.open(machine, topic_id)
    assert await consumer.acquire(max_wait_ms=1000) == expected
    # The next leader begins there, too, though nothing was acknowledged.
    await machine.until(lambda: coordinator.writes, 1)
    assert coordinator.starts[key_of(topic_id)] == 30 - sum(last - first + 1 for first, last, _ in expected)
    if reset == "latest":
        await produce(machine, 10)
        assert await consumer.acquire(max_wait_ms=1000) == [(30, 39, 1)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("PT1S", 1000), ("PT1.5S", 1500), ("P2D", 172_800_000), ("P1DT2H3M4S", 93_784_000), ("pt5m", 300_000)],
)
def test_durations(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@broker_test(group_share_max_share_sessions=1, group_share_max_size=1)
async def test_a_session_that_is_not_used_any_more_makes_place(machine: Machine) -> None:
    _, topic_id = await start(machine)
    first = await ShareConsumer.open(machine, topic_id, member="first")
    second = await ShareConsumer.open(machine, topic_id, member="second")
    assert await first.acquire(max_wait_ms=1000) == [(0, 9, 1)]
    assert (await second.send_fetch()).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    await asyncio.sleep(121)
    second.epoch = 0
    assert await second.acquire(max_wait_ms=1000) == [(0, 9, 2)]
    assert (await first.send_fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


@broker_test
async def test_nothing_is_kept_for_groups_without_sessions(machine: Machine) -> None:
    coordinator, topic_id = await start(machine)
    share = machine.broker.services.share
    for number in range(20):
        consumer = await ShareConsumer.open(machine, topic_id, group=f"g{number}")
        await consumer.acquire(max_wait_ms=10)
        consumer.client.close()
    await asyncio.sleep(60)
    assert len(share.sessions) == len(share.leaders) == 0
    # Locks outlive a session that is replaced, and then expire.
    consumer = await ShareConsumer.open(machine, topic_id)
    assert await consumer.acquire(max_wait_ms=1000) == [(0, 9, 1)]
    consumer.client.close()
    await asyncio.sleep(1)
    assert len(share.leaders) == 0
    assert coordinator.states(key_of(topic_id)) == dict.fromkeys(range(10), DeliveryState.AVAILABLE)

"""A fetcher with a leader whose responses the test writes."""

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.replica.fetcher.replica_fetcher import BYTES_PER_CLOCK_READ
from kbroker.simulation.runtime.environment import SimClock
from kbroker.simulation.runtime.loop import SimLoop
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import EpochEndOffset, PartitionData
from tests.unit.replica.fetcher.fetcher_lab import (
    BROKER_EPOCH,
    EPOCH,
    NODE,
    FakePartition,
    Lab,
    claims,
    fetcher_test,
    records_of,
    rows,
)
from tests.unit.support.log_lab import batch


@fetcher_test
async def test_a_deletion_is_claimed_when_it_survives_a_crash(lab: Lab) -> None:
    """The leader's DeleteRecords succeeds with this claim."""
    partition = FakePartition(end=9)
    partition.log.stored = asyncio.get_running_loop().create_future()
    deleted = await lab.followed(partition)
    deleted.log_start_offset = 4
    lab.leader.respond(deleted)
    await asyncio.sleep(1)
    assert partition.log.log_start_offset == 4
    assert claims(lab.leader) == []
    partition.log.stored.set_result(None)
    await lab.leader.request()
    assert claims(lab.leader) == [4]


@fetcher_test
async def test_requests_name_only_what_has_changed(lab: Lab) -> None:
    first, second = FakePartition(0), FakePartition(1, end=7)
    lab.follow(first)
    lab.follow(second)
    request = await lab.leader.request()
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (NODE, BROKER_EPOCH)
    assert (request.session_id, request.session_epoch, request.max_wait_ms) == (0, 0, 0)
    assert rows(request) == [(0, EPOCH, 0, -1), (1, EPOCH, 7, 3)]
    lab.leader.respond(records_of(first, batch(2, leader_epoch=5), high_watermark=1), records_of(second))
    request = await lab.leader.request()
    assert (request.session_id, request.session_epoch) == (9, 1)
    assert rows(request) == [(0, EPOCH, 2, 5)]
    assert first.high_watermark == 1
    # The high watermark alone changes nothing that the leader must know.
    lab.leader.respond(records_of(first, high_watermark=2))
    request = await lab.leader.request()
    assert (rows(request), request.session_epoch, first.high_watermark) == ([], 2, 2)


@fetcher_test
async def test_late_responses_are_dropped(lab: Lab) -> None:
    partition = FakePartition(0)
    await lab.followed(partition)
    lab.follow(partition, epoch=EPOCH + 1)
    lab.leader.respond(records_of(partition, batch(1, leader_epoch=5)))
    assert rows(await lab.leader.request()) == [(0, EPOCH + 1, 0, -1)]
    assert partition.log.log_end_offset == 0
    # The log end offset has changed while the request was in flight.
    partition.log.log_end_offset = 5
    lab.leader.respond(records_of(partition, batch(1, leader_epoch=5), high_watermark=3))
    await lab.leader.request()
    assert (partition.log.log_end_offset, partition.high_watermark) == (5, 0)


@fetcher_test
async def test_a_partition_that_becomes_the_leader_is_forgotten(lab: Lab) -> None:
    first, second = FakePartition(0), FakePartition(1)
    lab.follow(first)
    await lab.followed(second)
    lab.follow(first, EPOCH + 1, leader=NODE)
    lab.leader.respond(records_of(first, batch(1, leader_epoch=5)))
    request = await lab.leader.request()
    assert [(topic.partitions) for topic in request.forgotten_topics_data] == [[0]]
    assert first.log.log_end_offset == 0


@fetcher_test
async def test_truncation_by_diverging_epoch(lab: Lab) -> None:
    partition = FakePartition(0, end=10)
    partition.log.epochs = LeaderEpochCache([(1, 0), (4, 6)])
    await lab.followed(partition)
    partition.truncating = lab.environment.loop.create_future()
    lab.leader.respond(records_of(partition, diverging_epoch=EpochEndOffset(epoch=3, end_offset=8)))
    # Meanwhile the partition is not fetched, and not in the session.
    await asyncio.sleep(1)
    assert not lab.leader.requests
    partition.truncating.set_result(None)
    assert rows(await lab.leader.request()) == [(0, EPOCH, 6, 1)]
    assert partition.truncations == [6]


@pytest.mark.parametrize(
    ("end", "leader_start", "expected"),
    [
        (10, 0, "INFO log diverges from the leader's, is truncated partition=t-0 leader=1 to=6 log_end_offset=10"),
        (10, 7, "INFO log diverges from the leader's, starts again partition=t-0 leader=1 to=7 log_end_offset=10"),
        # It led in epoch 4 without appending a record.
        (6, 0, "DEBUG leader epochs without records removed partition=t-0 leader=1 to=6 log_end_offset=6"),
    ],
)
def test_the_log_says_what_a_truncation_removes(
    end: int, leader_start: int, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def truncate(lab: Lab) -> None:
        partition = FakePartition(0, end)
        partition.log.epochs = LeaderEpochCache([(1, 0), (4, 6)])
        diverging = await lab.followed(partition)
        diverging.diverging_epoch, diverging.log_start_offset = EpochEndOffset(epoch=3, end_offset=8), leader_start
        lab.leader.respond(diverging)
        await lab.leader.request()

    caplog.set_level(logging.DEBUG, "kbroker.replica")
    fetcher_test(truncate)()
    lines = [f"{record.levelname} {record.message}" for record in caplog.records]
    assert lines == [f"{expected} leader_epoch=3 leader_end_offset=8"]


@fetcher_test
async def test_an_evicted_session(lab: Lab) -> None:
    partition = FakePartition(0, end=4)
    await lab.followed(partition)
    lab.leader.respond(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0)
    request = await lab.leader.request()
    assert (request.session_id, request.session_epoch, rows(request)) == (0, 0, [(0, EPOCH, 4, 3)])


@fetcher_test
async def test_a_lost_connection(lab: Lab) -> None:
    partition = FakePartition(0, end=4)
    await lab.followed(partition)
    before = lab.environment.clock.mono_ms()
    lab.leader.fail()
    await asyncio.sleep(0)
    request = await lab.leader.request()
    # The leader closes the former session if it still has it.
    assert (request.session_id, request.session_epoch, rows(request)) == (9, 0, [(0, EPOCH, 4, 3)])
    assert lab.environment.clock.mono_ms() - before >= 20


@fetcher_test
async def test_errors_back_off_per_partition(lab: Lab) -> None:
    first, second = FakePartition(0), FakePartition(1)
    lab.follow(first)
    await lab.followed(second)
    lab.leader.respond(PartitionData(partition_index=0, error_code=ErrorCode.UNKNOWN_LEADER_EPOCH))
    request = await lab.leader.request()
    assert [topic.partitions for topic in request.forgotten_topics_data] == [[0]]
    lab.leader.respond(records_of(second, batch(1, leader_epoch=5)))
    await lab.leader.request()
    await asyncio.sleep(0.03)
    lab.leader.respond()
    assert rows(await lab.leader.request()) == [(0, EPOCH, 0, -1)]


@fetcher_test
async def test_corrupt_batches_are_not_appended(lab: Lab) -> None:
    partition = FakePartition(0)
    await lab.followed(partition)
    damaged = batch(1, leader_epoch=5)
    damaged[-1] ^= 1
    lab.leader.respond(records_of(partition, batch(2, leader_epoch=5), damaged))
    assert rows(await lab.leader.request()) == [(0, EPOCH, 0, -1)]
    assert partition.log.log_end_offset == 0


@fetcher_test
async def test_a_full_disk_backs_off(lab: Lab) -> None:
    partition = FakePartition(0)
    await lab.followed(partition)
    partition.append_error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left")
    for _ in range(5):
        lab.leader.respond(records_of(partition, batch(1, leader_epoch=5)))
        assert rows(await lab.leader.request()) == [(0, EPOCH, 0, -1)]
    partition.append_error = None
    lab.leader.respond(records_of(partition, batch(1, leader_epoch=5)))
    assert rows(await lab.leader.request()) == [(0, EPOCH, 1, 5)]


@fetcher_test
async def test_a_follower_below_the_start_of_the_leader(lab: Lab) -> None:
    partition = FakePartition(0, end=4)
    await lab.followed(partition)
    lab.leader.offsets = (100, 150)
    lab.leader.respond(PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert rows(await lab.leader.request()) == [(0, EPOCH, 100, -1 if not partition.log.epochs.entries else 3)]
    assert partition.log.log_start_offset == 100


@fetcher_test
async def test_a_follower_beyond_the_end_of_an_unclean_leader(lab: Lab) -> None:
    partition = FakePartition(0, end=40)
    await lab.followed(partition)
    lab.leader.offsets = (0, 15)
    lab.leader.respond(PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert rows(await lab.leader.request()) == [(0, EPOCH, 15, 3)]


@fetcher_test
async def test_the_next_fetch_waits_for_the_sync(lab: Lab) -> None:
    partition = FakePartition(0)
    partition.flush_before_ack = True
    await lab.followed(partition)
    lab.leader.respond(records_of(partition, batch(1, leader_epoch=5)))
    await asyncio.sleep(1)
    # A request would claim that this replica has the record.
    assert not lab.leader.requests
    partition.log.recovery_point = 1
    partition.sync_callbacks.popleft()(ErrorCode.NONE)
    assert rows(await lab.leader.request()) == [(0, EPOCH, 1, 5)]


@fetcher_test
async def test_a_new_partition_does_not_wait_for_records_of_another(lab: Lab) -> None:
    first, second, third = FakePartition(0), FakePartition(1), FakePartition(2)
    await lab.followed(first)
    lab.follow(second)
    lab.follow(third)
    await asyncio.sleep(0.01)
    waiting, superseding = [request for request, _ in lab.leader.requests]
    assert (waiting.session_epoch, rows(waiting)) == (1, [])
    assert (superseding.session_epoch, rows(superseding)) == (2, [(1, EPOCH, 0, -1), (2, EPOCH, 0, -1)])
    lab.leader.respond()
    await asyncio.sleep(0.01)
    assert len(lab.leader.requests) == 1
    lab.leader.respond(records_of(second, batch(1, leader_epoch=5)))
    request = await lab.leader.request()
    assert (request.session_epoch, rows(request)) == (3, [(1, EPOCH, 1, 5)])


@fetcher_test
async def test_one_partition_after_another_does_not_wait(lab: Lab) -> None:
    partitions = [FakePartition(index) for index in range(4)]
    await lab.followed(partitions[0])
    for partition in partitions[1:]:
        lab.follow(partition)
        await asyncio.sleep(0.001)
    lab.leader.respond()
    await asyncio.sleep(0.001)
    assert [rows(request) for request, _ in lab.leader.requests] == [
        [(1, EPOCH, 0, -1)],
        [(2, EPOCH, 0, -1), (3, EPOCH, 0, -1)],
    ]


@fetcher_test
async def test_an_error_of_a_later_version(lab: Lab) -> None:
    first, second = FakePartition(0), FakePartition(1)
    lab.follow(first)
    await lab.followed(second)
    lab.leader.respond(PartitionData(partition_index=0, error_code=12345), records_of(second, batch(1, leader_epoch=5)))
    assert rows(await lab.leader.request()) == [(1, EPOCH, 1, 5)]


@fetcher_test
async def test_a_leader_that_returns_is_fetched_from_at_once(lab: Lab) -> None:
    partition = FakePartition(0)
    await lab.followed(partition)
    for _ in range(6):
        await lab.leader.request()
        lab.leader.fail()
        await asyncio.sleep(0.21)
    await lab.leader.request()
    lab.leader.fail()
    await asyncio.sleep(0.01)
    assert not lab.leader.requests
    lab.follow(partition, EPOCH + 1)
    await asyncio.sleep(0.001)
    assert rows(lab.leader.requests[0][0]) == [(0, EPOCH + 1, 0, -1)]


@fetcher_test
async def test_both_requests_fail_with_the_connection(lab: Lab) -> None:
    first, second = FakePartition(0), FakePartition(1)
    await lab.followed(first)
    lab.follow(second)
    await asyncio.sleep(0.01)
    lab.leader.fail()
    lab.leader.fail()
    request = await lab.leader.request()
    assert (request.session_epoch, len(rows(request))) == (0, 2)


@fetcher_test
async def test_many_partitions_take_several_requests(lab: Lab) -> None:
    partitions = [FakePartition(index) for index in range(300)]
    for partition in partitions:
        lab.follow(partition)
    sizes = []
    for _ in range(3):
        request = await lab.leader.request()
        sizes.append((len(rows(request)), request.max_wait_ms))
        lab.leader.respond(*(records_of(partitions[row[0]]) for row in rows(request)))
    assert sizes == [(128, 0), (128, 0), (44, 500)]


class SlowClock(SimClock):
    """Each look at the time takes a millisecond."""

    looks = 0

    def mono_ns(self) -> int:
        self.looks += 1
        return super().mono_ns() + self.looks * 1_000_000


@fetcher_test
async def test_others_use_the_loop_between_large_appends(lab: Lab) -> None:
    events = []

    class Busy(FakePartition):
        def append_as_follower(self, *arguments: Any) -> int:
            events.append("append")
            return super().append_as_follower(*arguments)

    partitions = [Busy(index) for index in range(4)]
    for partition in partitions:
        lab.follow(partition)
    await lab.leader.request()
    assert isinstance(lab.environment.loop, SimLoop)
    lab.environment.clock = SlowClock(lab.environment.loop)
    large = bytes(batch(size=BYTES_PER_CLOCK_READ, leader_epoch=EPOCH))
    lab.leader.respond(*(records_of(partition, large) for partition in partitions))
    while events.count("append") < len(partitions):
        events.append("others")
        await asyncio.sleep(0)
    assert ("append", "append") not in pairwise(events)

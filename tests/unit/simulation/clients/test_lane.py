"""What a producer may send next, and what it must not send again."""

import asyncio

import pytest

from kbroker.simulation.checker.history import Operation, Send
from kbroker.simulation.clients.producer.partition_queue import Lane, QueuedBatch
from protocol.records.batch import NO_SEQUENCE, parse_header

PLACE = ("t", 0)
ME, MYSELF_LATER = (7, 0), (7, 1)


def lane_of(loop: asyncio.AbstractEventLoop, count: int, idempotent: bool = True) -> Lane:
    lane = Lane(PLACE, idempotent, 5)
    for value in range(count):
        operation = Operation(value, "p", Send(PLACE, (value, value), value), value, 0)
        records = [(0, None, b"%d" % value, ())] * 2
        lane.window.append(QueuedBatch(operation, PLACE, lane.next_order(), records, 0, 10.0, loop.create_future()))
    return lane


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def send(lane: Lane, identity: tuple[int, int] = ME) -> list[int]:
    """All that may be sent now, by order."""
    sent = []
    while (batch := lane.next(identity)) is not None:
        lane.prepare(batch)
        sent.append(batch.order)
    return sent


def acknowledge(lane: Lane) -> None:
    batch = lane.window.pop(0)
    lane.returned(batch)
    lane.acknowledged(batch)


def sequences(lane: Lane) -> list[int]:
    return [batch.sequence for batch in lane.window]


def test_the_first_goes_alone_and_then_as_many_as_may_be_in_flight(loop) -> None:
    lane = lane_of(loop, 9)
    assert send(lane) == [0]
    acknowledge(lane)
    assert send(lane) == [1, 2, 3, 4, 5]
    assert sequences(lane)[:5] == [2, 4, 6, 8, 10]
    assert send(lane) == []
    acknowledge(lane)
    assert send(lane) == [6]


def test_a_plain_producer_waits_for_nothing(loop) -> None:
    lane = lane_of(loop, 9, idempotent=False)
    assert send(lane) == [0, 1, 2, 3, 4]
    assert sequences(lane)[:5] == [NO_SEQUENCE] * 5
    assert parse_header(lane.window[0].data or b"").producer_id == -1


def test_repetitions_go_one_by_one_with_the_numbers_that_they_had(loop) -> None:
    lane = lane_of(loop, 4)
    send(lane)
    acknowledge(lane)
    send(lane)
    datas = [batch.data for batch in lane.window]
    for batch in lane.window:
        lane.returned(batch)
    assert send(lane) == [1]
    acknowledge(lane)
    assert send(lane) == [2]
    acknowledge(lane)
    assert send(lane) == [3]
    assert lane.window[0].data is datas[2]


def test_a_lane_that_rests_or_is_broken_sends_nothing(loop) -> None:
    lane = lane_of(loop, 1)
    lane.resting = True
    assert send(lane) == []
    lane.resting, lane.broken = False, True
    assert send(lane) == []


def test_what_may_have_been_written_is_not_written_again_nor_what_was_before_it(loop) -> None:
    lane = lane_of(loop, 5)
    send(lane)
    acknowledge(lane)
    send(lane)
    for batch in lane.window:
        lane.returned(batch)
    lane.window[1].undecided = True
    assert [batch.order for batch in lane.cannot_repeat()] == [1, 2]
    del lane.window[:2]
    lane.restart(MYSELF_LATER)
    assert send(lane, MYSELF_LATER) == [3]
    assert parse_header(lane.window[0].data or b"")[9:12] == (7, 1, 0)


def test_what_is_older_than_an_acknowledged_one_is_not_written_after_it(loop) -> None:
    lane = lane_of(loop, 5)
    send(lane)
    acknowledge(lane)
    send(lane)
    for batch in lane.window:
        lane.returned(batch)
    lane.acknowledged(lane.window.pop(2))
    assert [batch.order for batch in lane.cannot_repeat()] == [1, 2]


def test_giving_up_leaves_a_gap_only_behind_what_was_sent(loop) -> None:
    lane = lane_of(loop, 3)
    lane.given_up(lane.window[0])
    assert not lane.broken
    send(lane)
    lane.given_up(lane.window[0])
    assert lane.broken
    plain = lane_of(loop, 1, idempotent=False)
    send(plain)
    plain.given_up(plain.window[0])
    assert not plain.broken


def test_another_identity_is_taken_when_nothing_is_under_way(loop) -> None:
    lane = lane_of(loop, 3)
    send(lane)
    acknowledge(lane)
    lane.prepare(lane.window[0])
    assert send(lane, MYSELF_LATER) == []
    acknowledge(lane)
    assert send(lane, MYSELF_LATER) == [2]
    assert lane.window[0].sequence == 0


def test_sequences_begin_at_zero_after_the_largest(loop) -> None:
    lane = lane_of(loop, 2)
    lane.restart(ME)
    lane._next_sequence = 2**31 - 2
    send(lane)
    acknowledge(lane)
    send(lane)
    assert sequences(lane) == [0]

"""Which batches of a partition a producer may send next, and which it must not send again."""

import asyncio

import pytest

from kbroker.simulation.checker.history import Operation, Send
from kbroker.simulation.clients.partition_queue import PartitionQueue, QueuedBatch
from protocol.records.batch import NO_SEQUENCE, parse_header

PLACE = ("t", 0)
IDENTITY, NEXT_IDENTITY = (7, 0), (7, 1)


def queue_of(loop: asyncio.AbstractEventLoop, count: int, idempotent: bool = True) -> PartitionQueue:
    queue = PartitionQueue(PLACE, idempotent, 5)
    for value in range(count):
        operation = Operation(value, "p", Send(PLACE, (value, value), value), value, 0)
        records = [(0, None, b"%d" % value, ())] * 2
        queue.pending.append(QueuedBatch(operation, PLACE, queue.next_order(), records, 0, 10.0, loop.create_future()))
    return queue


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def send(queue: PartitionQueue, identity: tuple[int, int] = IDENTITY) -> list[int]:
    """Send all batches that may be sent now. Returns their orders."""
    sent = []
    while (batch := queue.next_sendable(identity)) is not None:
        queue.prepare(batch)
        sent.append(batch.order)
    return sent


def return_all(queue: PartitionQueue) -> None:
    for batch in queue.pending:
        queue.mark_returned(batch)


def acknowledge(queue: PartitionQueue) -> None:
    batch = queue.pending.pop(0)
    queue.mark_returned(batch)
    queue.mark_acknowledged(batch)


def queue_with_returned_batches(loop: asyncio.AbstractEventLoop, count: int) -> PartitionQueue:
    """Return a queue whose first batch was acknowledged, and whose other batches wait for their retries."""
    queue = queue_of(loop, count)
    send(queue)
    acknowledge(queue)
    send(queue)
    return_all(queue)
    return queue


def sequences(queue: PartitionQueue) -> list[int]:
    return [batch.sequence for batch in queue.pending]


def test_first_batch_is_sent_alone_then_up_to_max_in_flight(loop) -> None:
    queue = queue_of(loop, 9)
    assert send(queue) == [0]
    acknowledge(queue)
    assert send(queue) == [1, 2, 3, 4, 5]
    assert sequences(queue)[:5] == [2, 4, 6, 8, 10]
    assert send(queue) == []
    acknowledge(queue)
    assert send(queue) == [6]


def test_plain_producer_sends_up_to_max_in_flight_at_once(loop) -> None:
    queue = queue_of(loop, 9, idempotent=False)
    assert send(queue) == [0, 1, 2, 3, 4]
    assert sequences(queue)[:5] == [NO_SEQUENCE] * 5
    assert parse_header(queue.pending[0].data or b"").producer_id == -1


def test_retries_are_sent_one_at_a_time_with_their_sequences(loop) -> None:
    queue = queue_with_returned_batches(loop, 4)
    encoded = [batch.data for batch in queue.pending]
    for order in (1, 2, 3):
        assert send(queue) == [order]
        assert queue.pending[0].data is encoded[order - 1]
        acknowledge(queue)


def test_queue_that_backs_off_or_is_broken_sends_nothing(loop) -> None:
    queue = queue_of(loop, 1)
    queue.is_backing_off = True
    assert send(queue) == []
    queue.is_backing_off, queue.is_sequence_broken = False, True
    assert send(queue) == []


def test_unrepeatable_batches_end_at_the_last_maybe_written_batch(loop) -> None:
    queue = queue_with_returned_batches(loop, 5)
    queue.pending[1].maybe_applied = True
    assert [batch.order for batch in queue.unrepeatable_batches()] == [1, 2]
    del queue.pending[:2]
    queue.restart(NEXT_IDENTITY)
    assert send(queue, NEXT_IDENTITY) == [3]
    assert parse_header(queue.pending[0].data or b"")[9:12] == (7, 1, 0)


def test_batch_before_an_acknowledged_batch_is_unrepeatable(loop) -> None:
    queue = queue_with_returned_batches(loop, 5)
    queue.mark_acknowledged(queue.pending.pop(2))
    assert [batch.order for batch in queue.unrepeatable_batches()] == [1, 2]


def test_giving_up_breaks_the_sequence_only_of_a_sent_batch(loop) -> None:
    queue = queue_of(loop, 3)
    queue.mark_given_up(queue.pending[0])
    assert not queue.is_sequence_broken
    send(queue)
    queue.mark_given_up(queue.pending[0])
    assert queue.is_sequence_broken
    plain = queue_of(loop, 1, idempotent=False)
    send(plain)
    plain.mark_given_up(plain.pending[0])
    assert not plain.is_sequence_broken


def test_new_identity_is_used_when_nothing_is_in_flight(loop) -> None:
    queue = queue_of(loop, 3)
    send(queue)
    acknowledge(queue)
    queue.prepare(queue.pending[0])
    assert send(queue, NEXT_IDENTITY) == []
    acknowledge(queue)
    assert send(queue, NEXT_IDENTITY) == [2]
    assert queue.pending[0].sequence == 0


def test_sequence_wraps_to_zero(loop) -> None:
    queue = queue_of(loop, 2)
    queue.restart(IDENTITY)
    queue._next_sequence = 2**31 - 2
    send(queue)
    acknowledge(queue)
    send(queue)
    assert sequences(queue) == [0]

"""A whole broker that dies while a transaction ends, at every turn of the loop: afterwards all of the transaction is
there or nothing of it, and what the producer was told is so.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.common import TopicPartition
from kbroker.coordinator.internal_log import TransactionMarker
from protocol.errors import ErrorCode
from protocol.messages.k26_end_txn import EndTxnRequest, EndTxnResponse
from protocol.records.batch import body_of, iter_headers
from protocol.records.record import iter_records
from tests.unit.support.client import Client, records_of
from tests.unit.support.simulated_broker import Machine, story
from tests.unit.support.transactional_producer import Producer, producer

PLACES = (("a", 0), ("a", 1), ("b", 0))
FLUSHED = {"flush_before_ack": "true"}
# More than it takes from a request's arrival to the last record of its transaction; and later, when it was answered.
TURNS = 8


async def read_committed(client: Client, topic: str, partition: int) -> list[bytes]:
    """All values, without those of aborted transactions, as consumers leave them out."""
    values: list[bytes] = []
    offset = 0
    while True:
        answer = await client.fetch_one(topic, offset, partition, isolation_level=1)
        assert answer.error_code == 0
        aborted = sorted((one.first_offset, one.producer_id) for one in answer.aborted_transactions or ())
        data = records_of(answer)
        leaving: set[int] = set()
        start = offset
        for pos, header in iter_headers(data):
            offset = header.next_offset
            while aborted and aborted[0][0] < header.next_offset:
                leaving.add(aborted.pop(0)[1])
            if header.is_control:
                leaving.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in leaving):
                records = iter_records(memoryview(body_of(data, pos, header.size)), header.count, 0)
                values += [bytes(record.value or b"") for record in records]
        if offset == start:
            return values


async def end_and_die(m: Machine, turns: int, *, committed: bool, v2: bool, power: bool) -> tuple[bool, str]:
    """(whether the producer was told that it has ended, the state of the transaction in the end)."""
    id = f"t{turns}-{committed}-{v2}"
    one = await producer(m, id, v2=v2)
    if not v2:
        await one.add({"a": [0, 1], "b": [0]})
    for topic, partition in PLACES:
        assert (await one.send(topic, id.encode(), partition=partition)).error_code == 0
    request = EndTxnRequest(
        transactional_id=id, producer_id=one.producer_id, producer_epoch=one.epoch, committed=committed
    )
    arrived = on_arrival(m)
    asked = one.client.post(request, 5 if v2 else 4, EndTxnResponse)
    await arrived
    for _ in range(turns):
        await asyncio.sleep(0)
    if turns > TURNS:
        await asyncio.sleep(turns / 1000)
    told = asked.done() and asked.exception() is None and asked.result().error_code == 0
    await m.crash(power=power)
    await m.start()
    return told, await ended(m, id)


def on_arrival(m: Machine) -> "asyncio.Future[None]":
    """Done when an EndTxn reaches the coordinator."""
    arrived = m.loop.create_future()
    transactions = m.broker.services.transactions
    end = transactions.end

    async def wrapped(*args: Any) -> tuple[int, int]:
        arrived.set_result(None)
        return await end(*args)

    transactions.end = wrapped  # type: ignore[method-assign]
    return arrived


async def ended(m: Machine, id: str) -> str:
    """How it has ended: the next producer of its transactional id has what is open aborted."""
    following = Producer(await m.client(), id)
    while True:
        state = (await following.described()).transaction_state
        if state.startswith("Complete"):
            return state
        if state == "Ongoing":
            await following.init()
        await asyncio.sleep(0.01)


async def judge(m: Machine, outcomes: dict[bytes, str]) -> None:
    client = await m.client()
    there = {value for value, state in outcomes.items() if state == "CompleteCommit"}
    for topic, partition in PLACES:
        found = Counter(await read_committed(client, topic, partition))
        assert found == dict.fromkeys(there, 1), f"in {topic}-{partition}"


@pytest.mark.parametrize("v2", [True, False])
@pytest.mark.parametrize("committed", [True, False])
@story(transaction_state_log_num_partitions=1)
async def test_a_kill_at_every_turn(m: Machine, committed: bool, v2: bool) -> None:
    outcomes: dict[bytes, str] = {}
    for turns in range(TURNS + 2):
        told, state = await end_and_die(m, turns, committed=committed, v2=v2, power=False)
        if told:
            assert state == ("CompleteCommit" if committed else "CompleteAbort")
        outcomes[f"t{turns}-{committed}-{v2}".encode()] = state
        await judge(m, outcomes)
    if committed:
        assert set(outcomes.values()) == {"CompleteCommit", "CompleteAbort"}


@pytest.mark.parametrize("v2", [True, False])
@story(transaction_state_log_num_partitions=1)
async def test_a_power_loss_at_every_turn(m: Machine, v2: bool) -> None:
    """With everything synced before it is acknowledged."""
    await producer(m, "first")
    for topic in ("a", "b", "__transaction_state"):
        await (await m.client()).alter_topic(topic, **FLUSHED)
    outcomes: dict[bytes, str] = {}
    for turns in range(TURNS + 12):
        told, state = await end_and_die(m, turns, committed=True, v2=v2, power=True)
        if told:
            assert state == "CompleteCommit"
        outcomes[f"t{turns}-{True}-{v2}".encode()] = state
        await judge(m, outcomes)
    assert set(outcomes.values()) == {"CompleteCommit", "CompleteAbort"}


@pytest.mark.parametrize("v2", [True, False])
@story(transaction_state_log_num_partitions=1)
async def test_a_kill_between_the_markers(m: Machine, v2: bool) -> None:
    """Some partitions have it and others not: the next coordinator brings it to all, and twice is as once."""
    outcomes: dict[bytes, str] = {}
    for without in (PLACES[:1], PLACES[1:], PLACES):
        markers = m.broker.services.markers
        write_marker = markers.write_marker

        def some(
            tp: TopicPartition,
            marker: TransactionMarker,
            done: Callable[[ErrorCode], None],
            write: Callable[..., None] = write_marker,
            without: tuple[tuple[str, int], ...] = without,
        ) -> None:
            if tp not in without:
                write(tp, marker, done)

        markers.write_marker = some  # type: ignore[method-assign]
        turns = TURNS + len(without)
        _, outcomes[f"t{turns}-True-{v2}".encode()] = await end_and_die(m, turns, committed=True, v2=v2, power=False)
        await judge(m, outcomes)
    assert set(outcomes.values()) == {"CompleteCommit"}

"""A broker that crashes in any iteration of the event loop while a transaction ends.

Afterwards the transaction is visible in all its partitions or in none, and the outcome is that of the response.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.common import TopicPartition
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode
from protocol.messages.k22_transactions import EndTxnRequest, EndTxnResponse
from protocol.records.batch import body_of, iter_headers
from protocol.records.record import iter_records
from tests.unit.support.client import Client, records_of
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import Producer, init_producer

PARTITIONS = (("a", 0), ("a", 1), ("b", 0))
FLUSHED = {"flush_before_ack": "true"}
# More iterations than there are between the arrival of a request and the last record of its transaction.
ITERATIONS = 8


async def read_committed(client: Client, topic: str, partition: int) -> list[bytes]:
    """Return all values, except those of aborted transactions, which consumers filter."""
    values: list[bytes] = []
    offset = 0
    while True:
        response = await client.fetch_partition(topic, offset, partition, isolation_level=1)
        assert response.error_code == 0
        aborted = sorted(
            (transaction.first_offset, transaction.producer_id) for transaction in response.aborted_transactions or ()
        )
        data = records_of(response)
        aborting: set[int] = set()
        start = offset
        for pos, header in iter_headers(data):
            offset = header.next_offset
            while aborted and aborted[0][0] < header.next_offset:
                aborting.add(aborted.pop(0)[1])
            if header.is_control:
                aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                records = iter_records(memoryview(body_of(data, pos, header.size)), header.count, 0)
                values += [bytes(record.value or b"") for record in records]
        if offset == start:
            return values


async def end_and_crash(m: Machine, iterations: int, *, committed: bool, v2: bool, power: bool) -> tuple[bool, str]:
    """Return whether the response was a success, and the final state of the transaction."""
    id = f"t{iterations}-{committed}-{v2}"
    producer = await init_producer(m, id, v2=v2)
    if not v2:
        await producer.add({"a": [0, 1], "b": [0]})
    for topic, partition in PARTITIONS:
        assert (await producer.send(topic, id.encode(), partition=partition)).error_code == 0
    request = EndTxnRequest(
        transactional_id=id, producer_id=producer.producer_id, producer_epoch=producer.epoch, committed=committed
    )
    arrived = on_arrival(m)
    response = producer.client.send(request, 5 if v2 else 4, EndTxnResponse)
    await arrived
    for _ in range(iterations):
        await asyncio.sleep(0)
    if iterations > ITERATIONS:
        await asyncio.sleep(iterations / 1000)
    succeeded = response.done() and response.exception() is None and response.result().error_code == 0
    await m.crash(power=power)
    await m.start()
    return succeeded, await final_state(m, id)


def on_arrival(m: Machine) -> "asyncio.Future[None]":
    """Return a future that is done when an EndTxn reaches the coordinator."""
    arrived = m.loop.create_future()
    transactions = m.broker.services.transactions
    end_transaction = transactions.end_transaction

    async def wrapped(*args: Any) -> tuple[int, int]:
        arrived.set_result(None)
        return await end_transaction(*args)

    transactions.end_transaction = wrapped  # type: ignore[method-assign]
    return arrived


async def final_state(m: Machine, id: str) -> str:
    """Return the final state. If the transaction is open, another producer aborts it."""
    successor = Producer(await m.client(), id)
    while True:
        state = (await successor.describe()).transaction_state
        if state.startswith("Complete"):
            return state
        if state == "Ongoing":
            await successor.init()
        await asyncio.sleep(0.01)


async def check_records(m: Machine, outcomes: dict[bytes, str]) -> None:
    client = await m.client()
    committed = {value for value, state in outcomes.items() if state == "CompleteCommit"}
    for topic, partition in PARTITIONS:
        values = Counter(await read_committed(client, topic, partition))
        assert values == dict.fromkeys(committed, 1), f"in {topic}-{partition}"


@pytest.mark.parametrize("v2", [True, False])
@pytest.mark.parametrize("committed", [True, False])
@broker_test(transaction_state_log_num_partitions=1)
async def test_a_kill_in_every_loop_iteration(m: Machine, committed: bool, v2: bool) -> None:
    outcomes: dict[bytes, str] = {}
    for iterations in range(ITERATIONS + 2):
        succeeded, state = await end_and_crash(m, iterations, committed=committed, v2=v2, power=False)
        if succeeded:
            assert state == ("CompleteCommit" if committed else "CompleteAbort")
        outcomes[f"t{iterations}-{committed}-{v2}".encode()] = state
        await check_records(m, outcomes)
    if committed:
        assert set(outcomes.values()) == {"CompleteCommit", "CompleteAbort"}


@pytest.mark.parametrize("v2", [True, False])
@broker_test(transaction_state_log_num_partitions=1)
async def test_a_power_loss_in_every_loop_iteration(m: Machine, v2: bool) -> None:
    """All topics have flush.before.ack."""
    await init_producer(m, "first")
    for topic in ("a", "b", "__transaction_state"):
        await (await m.client()).alter_topic(topic, **FLUSHED)
    outcomes: dict[bytes, str] = {}
    for iterations in range(ITERATIONS + 12):
        succeeded, state = await end_and_crash(m, iterations, committed=True, v2=v2, power=True)
        if succeeded:
            assert state == "CompleteCommit"
        outcomes[f"t{iterations}-{True}-{v2}".encode()] = state
        await check_records(m, outcomes)
    assert set(outcomes.values()) == {"CompleteCommit", "CompleteAbort"}


@pytest.mark.parametrize("v2", [True, False])
@broker_test(transaction_state_log_num_partitions=1)
async def test_a_kill_between_the_markers(m: Machine, v2: bool) -> None:
    """Only some partitions have their marker: the next coordinator writes the others, and some of them twice."""
    outcomes: dict[bytes, str] = {}
    for without in (PARTITIONS[:1], PARTITIONS[1:], PARTITIONS):
        writer = m.broker.services.marker_writer

        def write_some(
            tp: TopicPartition,
            marker: TransactionMarker,
            on_written: Callable[[ErrorCode], None],
            write: Callable[..., None] = writer.write,
            without: tuple[tuple[str, int], ...] = without,
        ) -> None:
            if tp not in without:
                write(tp, marker, on_written)

        writer.write = write_some  # type: ignore[method-assign]
        iterations = ITERATIONS + len(without)
        _, outcomes[f"t{iterations}-True-{v2}".encode()] = await end_and_crash(
            m, iterations, committed=True, v2=v2, power=False
        )
        await check_records(m, outcomes)
    assert set(outcomes.values()) == {"CompleteCommit"}

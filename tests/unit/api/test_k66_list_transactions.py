"""ListTransactions: by state, producer, duration and pattern."""

import asyncio
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import init_producer


async def listed(client: Client, version: int = 2, **filters: Any) -> tuple[list[str], dict[str, str]]:
    """Return (unknown states, state by transactional id)."""
    response = await client.request(ListTransactionsRequest(**filters), version, ListTransactionsResponse)
    assert response.error_code == 0
    return response.unknown_state_filters, {
        row.transactional_id: row.transaction_state for row in response.transaction_states
    }


@broker_test
@pytest.mark.parametrize("version", range(3))
async def test_states_and_producers(m: Machine, version: int) -> None:
    idle, busy = await init_producer(m, "idle"), await init_producer(m, "busy")
    await busy.send("a", b"x")
    client = idle.client
    assert await listed(client, version) == ([], {"idle": "Empty", "busy": "Ongoing"})
    assert await listed(client, version, state_filters=["Ongoing", "PrepareCommit"]) == ([], {"busy": "Ongoing"})
    assert await listed(client, version, state_filters=["ongoing"]) == (["ongoing"], {})
    assert await listed(client, version, state_filters=["nope", "Empty"]) == (["nope"], {"idle": "Empty"})
    assert await listed(client, version, producer_id_filters=[busy.producer_id]) == ([], {"busy": "Ongoing"})
    assert await listed(client, version, producer_id_filters=[12345]) == ([], {})


@broker_test
@pytest.mark.parametrize("version", [1, 2])
async def test_durations(m: Machine, version: int) -> None:
    idle, early, late = [await init_producer(m, name) for name in ("idle", "early", "late")]
    await early.send("a", b"x")
    await asyncio.sleep(5)
    await late.send("a", b"x")
    # An id without a transaction passes every duration filter, as in Kafka.
    assert set((await listed(idle.client, version, duration_filter=4000))[1]) == {"idle", "early"}
    assert set((await listed(idle.client, version, duration_filter=60_000))[1]) == {"idle"}
    assert len((await listed(idle.client, version, duration_filter=-7))[1]) == 3


@broker_test
async def test_patterns(m: Machine) -> None:
    producer, _ = await init_producer(m, "orders-1"), await init_producer(m, "orders-2")
    assert set((await listed(producer.client, transactional_id_pattern="orders-[2-9]"))[1]) == {"orders-2"}
    assert set((await listed(producer.client, transactional_id_pattern="orders"))[1]) == set()
    assert len((await listed(producer.client, transactional_id_pattern=""))[1]) == 2
    response = await producer.client.request(
        ListTransactionsRequest(transactional_id_pattern="(?=o).*"), 2, ListTransactionsResponse
    )
    assert (response.error_code, response.transaction_states) == (ErrorCode.INVALID_REGULAR_EXPRESSION, [])


@broker_test
async def test_patterns_are_matched_in_a_thread_in_chunks(m: Machine) -> None:
    ids = [f"{index}-{'x' * 30_000}" for index in range(4)]
    producers = [await init_producer(m, id) for id in ids]
    assert set((await listed(producers[0].client, transactional_id_pattern="[^0].*"))[1]) == set(ids[1:])
    assert m.threads.started["select_blocking"] == 2

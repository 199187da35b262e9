"""The simulated coordination service with other data: lost, and put back from a copy."""

import asyncio

import pytest

from kbroker.coordination.interface import NoNode, Set
from tests.unit.simulation.coordination.test_service import (
    NEVER_S,
    TIMEOUT_S,
    Client,
    with_ephemeral_node,
    with_node,
)


@with_node
async def test_lost_data_ends_sessions_and_a_copy_restores_nodes_with_their_versions(s):
    await s.a.call("set", "/x", b"2")
    copy = s.service.copy()
    s.service.write([Set("/x", b"3")])
    s.service.replace_data()
    await asyncio.sleep(TIMEOUT_S)
    assert s.a.expired
    assert s.b.expired
    client = Client(s, "c")
    with pytest.raises(NoNode):
        await client.call("get", "/x")
    s.service.replace_data(copy)
    client = Client(s, "d")
    assert (await client.call("get", "/x"))[:2] == (b"2", 1)
    await client.call("set", "/x", b"4")
    assert (await client.call("get", "/x"))[:2] == (b"4", 2)


@with_node
async def test_transactions_that_a_server_lacks_are_lost_with_the_data(s):
    s.service.lag(NEVER_S)
    await s.a.call("set", "/x", b"2")
    copy = s.service.copy()
    s.service.replace_data()
    s.service.replace_data(copy)
    s.service.heal_all()
    assert (await Client(s, "c").call("get", "/x")).data == b"2"


@with_ephemeral_node
async def test_ephemeral_nodes_of_a_copy_last_until_their_sessions_time_out(s):
    copy = s.service.copy()
    s.service.replace_data()
    s.service.replace_data(copy)
    client = Client(s, "c")
    await asyncio.sleep(TIMEOUT_S / 2)
    assert await client.call("exists", "/x") == 0
    await asyncio.sleep(TIMEOUT_S)
    assert await client.call("exists", "/x") is None

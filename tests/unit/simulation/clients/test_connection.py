"""Connections: their versions."""

from random import Random

import pytest

from kbroker.simulation.clients.connections.connection import SimClientConnection, connect
from kbroker.simulation.clients.connections.versions import STATIC_MEMBERS, draw_older_versions
from protocol.apis import APIS, ApiKey
from protocol.client import UnsupportedVersionError
from tests.unit.support.simulated_broker import HOST, PORT, Machine, broker_test


async def connected(
    machine: Machine, caps: dict[int, int] | None = None, timeout_s: float = 5.0
) -> SimClientConnection:
    return await connect(machine.loop, (HOST, PORT), "client", caps or {}, timeout_s)


@broker_test
async def test_versions_are_supported_by_both_sides(machine: Machine) -> None:
    connection = await connected(machine, {ApiKey.FETCH: 7, ApiKey.PRODUCE: 99})
    assert connection.version(ApiKey.FETCH) == 7
    assert connection.version(ApiKey.PRODUCE) == APIS[ApiKey.PRODUCE].max_version
    assert connection.version(ApiKey.METADATA) == APIS[ApiKey.METADATA].max_version
    connection.close()
    old = await connected(machine, {ApiKey.FETCH: 2, ApiKey.API_VERSIONS: 0})
    with pytest.raises(UnsupportedVersionError, match="FETCH: the broker supports 4 to 18, the client 4 to 2"):
        old.version(ApiKey.FETCH)
    old.close()


def test_older_clients_have_usable_versions() -> None:
    seen = set()
    for seed in range(300):
        caps = draw_older_versions(Random(seed), static_members=seed % 2 == 0)
        seen.add(caps[ApiKey.PRODUCE])
        if caps[ApiKey.METADATA] < 10:
            assert caps[ApiKey.FETCH] <= 12
            assert caps[ApiKey.PRODUCE] <= 12
        if seed % 2 == 0:
            assert all(caps[key] >= first for key, first in STATIC_MEMBERS.items())
        assert all(APIS[key].min_version <= cap <= APIS[key].max_version for key, cap in caps.items())
    assert seen == set(range(3, 14))

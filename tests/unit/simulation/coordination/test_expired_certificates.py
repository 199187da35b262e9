"""Certificates of brokers that have expired: no broker connects to another one, but each is known to run.

The simulation has no TLS: here each new connection to a listener for brokers fails as it would with TLS.
"""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kbroker.simulation.runtime.host_loop import HostLoop
from kbroker.simulation.runtime.machine import PORT
from tests.unit.simulation.coordination.test_fencing_check import SESSION_S, ThreeBrokers
from tests.unit.simulation.coordination.test_isolated_controller import ALL, controllers
from tests.unit.support.simulated_hosts import simulated

SEEDS = range(2)
# Enough for several sessions to expire, and for several resignations.
LONG_S = 40


@contextmanager
def expired_certificates(s: ThreeBrokers, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """End the connections between brokers; new ones fail meanwhile."""
    connect = HostLoop.create_connection

    async def refuse(loop: HostLoop, factory: Any, host: str = "", port: int = 0, **options: Any) -> Any:
        if port == PORT:
            return await connect(loop, factory, host, port, **options)
        transport, _ = await connect(loop, asyncio.Protocol, host, port)
        transport.abort()
        raise ssl.SSLCertVerificationError(1, "certificate verify failed")

    with patch.context() as patched:
        patched.setattr(HostLoop, "create_connection", refuse)
        for source in ALL:
            for target in ALL:
                for connection in s.loop.network.faults.connections(f"broker{source}", f"broker{target}"):
                    s.loop.network.faults.reset(connection)
        yield


def roles(s: ThreeBrokers) -> list[object]:
    """Return the controller, and the broker epoch and the led partitions of each broker."""
    return [controllers(s), *((s.epoch(number), s.led(number)) for number in ALL)]


def handshake_failures(s: ThreeBrokers) -> int:
    return sum(s.broker(number).services.peers.stats.connection_failures for number in ALL)


@simulated(ThreeBrokers, SEEDS)
async def test_no_broker_gives_up_a_role(s: ThreeBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    before = roles(s)
    with expired_certificates(s, monkeypatch):
        await asyncio.sleep(LONG_S)
        assert handshake_failures(s) > 10
        assert roles(s) == before
        assert not any(s.broker(number)._cluster.is_in_doubt for number in ALL)
    await s.until(lambda: all(s.isr(number, index) == ALL for number in ALL for index in range(3)), 30)
    assert roles(s) == before


@simulated(ThreeBrokers, SEEDS)
async def test_nor_does_one_while_the_coordination_service_is_away(
    s: ThreeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = [s.led(number) for number in ALL]
    with expired_certificates(s, monkeypatch):
        for number in ALL:
            s.service.cut(f"broker{number}")
        await asyncio.sleep(4 * SESSION_S)
        assert [s.led(number) for number in ALL] == led
        assert not any(s.broker(number)._cluster.is_in_doubt for number in ALL)
        for number in ALL:
            s.service.heal(f"broker{number}")
    await s.until(lambda: all(s.isr(number, index) == ALL for number in ALL for index in range(3)), LONG_S)

"""The event loop of a host: its own callbacks and time, a pause, a kill."""

import asyncio
from random import Random

import pytest

from kbroker.simulation.runtime.host_loop import HostCrashed, HostLoop
from kbroker.simulation.runtime.loop import WAKEUP_DELAYS_NS, SimLoop, UnhandledError
from tests.unit.support.simulated_hosts import SimulatedHosts, simulated

host_test = simulated(SimulatedHosts, [1])


@host_test
async def test_a_killed_host_runs_nothing_more(s):
    host = s.host("one")
    steps = []

    async def work() -> None:
        try:
            steps.append("started")
            await asyncio.sleep(1)
            steps.append("never")
        finally:
            steps.append("never")

    def die() -> None:
        host.call_soon(steps.append, "never")
        host.die()
        host.call_soon(steps.append, "never")

    result = host.run(work())
    await asyncio.sleep(0.5)
    host.call_soon(die)
    with pytest.raises(HostCrashed):
        await result
    with pytest.raises(HostCrashed):
        await host.run(work())
    host.resume()
    await asyncio.sleep(5)
    assert steps == ["started"]


def test_an_unhandled_exception_names_its_host():
    async def test(s: SimulatedHosts) -> None:
        s.host("one").call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match="on one"):
        SimulatedHosts(1).run(test)


def test_hosts_run_in_seeded_order_and_each_keeps_its_own_order():
    def order(seed: int) -> list[str]:
        loop = SimLoop(seed, [20_000])
        hosts = [HostLoop(loop, name, Random(1)) for name in "abcde"]
        calls: list[str] = []
        for host in hosts:
            for number in (1, 2):
                host.call_at(1 + number / 1e6, calls.append, f"{host.host}{number}")
        loop.run_until_complete(asyncio.sleep(2))
        loop.close()
        assert all(calls.index(f"{name}1") < calls.index(f"{name}2") for name in "abcde")
        return calls

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(20)}) > 10


def test_a_late_loop_is_never_early():
    loop = SimLoop(1, WAKEUP_DELAYS_NS)
    late = []
    for number in range(200):
        when = number / 7
        loop.call_at(when, lambda when=when: late.append(loop.time() - when))
    loop.run_until_complete(asyncio.sleep(60))
    loop.close()
    assert 0 < sum(each > 0.000_01 for each in late) < len(late)
    assert 0 <= min(late) < max(late) < 0.001

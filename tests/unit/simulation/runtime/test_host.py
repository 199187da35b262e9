"""A host's loop: its share of the universe, a pause, and the end."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from kbroker.simulation.runtime.host_loop import HostCrashed, HostLoop
from kbroker.simulation.runtime.loop import WAKEUP_DELAYS_NS, SimLoop, UnhandledError


class Universe:
    def __init__(self, seed: int = 1) -> None:
        self.loop = SimLoop(seed)
        self.hosts: list[HostLoop] = []

    def host(self, name: str) -> HostLoop:
        host = HostLoop(self.loop, name, Random(name))
        self.hosts.append(host)
        return host


def play(story: Callable[[Universe], Awaitable[None]], seed: int = 1) -> None:
    sim_loop = Universe(seed)
    try:
        sim_loop.loop.run_until_complete(story(sim_loop))
        for host in sim_loop.hosts:
            host.discard()
    finally:
        sim_loop.loop.close()


def test_code_on_a_host_sees_its_own_loop_and_the_universe_its_own():
    async def story(u: Universe) -> None:
        one, other = u.host("one"), u.host("other")

        async def where() -> asyncio.AbstractEventLoop:
            await asyncio.sleep(0.1)
            return asyncio.get_running_loop()

        assert await one.run(where()) is one
        assert await other.run(where()) is other
        assert asyncio.get_running_loop() is u.loop
        assert u.loop.time() == pytest.approx(0.2)

    play(story)


def test_what_is_asked_of_a_host_comes_back_with_its_failures():
    async def story(u: Universe) -> None:
        host = u.host("one")

        async def fail() -> None:
            await asyncio.sleep(1)
            raise ValueError("so it is")

        with pytest.raises(ValueError, match="so it is"):
            await host.run(fail())

    play(story)


def test_a_paused_host_does_nothing_and_then_all_that_waits_in_order():
    async def story(u: Universe) -> None:
        host = u.host("one")
        done = []
        for second in (1, 2, 3):
            host.call_later(second, lambda at=second: done.append((at, u.loop.time())))
        await asyncio.sleep(1.5)
        host.pause()
        host.call_soon(done.append, "soon")
        await asyncio.sleep(5)
        assert done == [(1, 1.0)]
        host.resume()
        await asyncio.sleep(0)
        assert done == [(1, 1.0), "soon", (2, 6.5), (3, 6.5)]

    play(story)


def test_a_dead_host_does_nothing_more_and_whoever_waits_for_it_knows():
    async def story(u: Universe) -> None:
        host = u.host("one")
        steps = []

        async def work() -> None:
            try:
                steps.append("begun")
                await asyncio.sleep(1)
                steps.append("never")
            finally:
                steps.append("too late")

        asked = host.run(work())
        await asyncio.sleep(0.5)
        host.die()
        with pytest.raises(HostCrashed):
            await asked
        with pytest.raises(HostCrashed):
            await host.run(work())
        host.call_soon(steps.append, "nor this")
        host.resume()
        await asyncio.sleep(5)
        assert steps == ["begun"]

    play(story)


def test_a_host_may_die_in_the_middle_of_its_own_callback():
    async def story(u: Universe) -> None:
        host = u.host("one")
        steps = []

        def callback() -> None:
            host.call_soon(steps.append, "before")
            host.die()
            host.call_soon(steps.append, "after")

        host.call_soon(callback)
        await asyncio.sleep(1)
        assert steps == []

    play(story)


def test_threads_of_a_paused_host_stand_still_too():
    async def story(u: Universe) -> None:
        host = u.host("one")
        done = []

        async def work() -> None:
            await host.offload(done.append, "done")

        asked = host.run(work())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        host.pause()
        await asyncio.sleep(1)
        assert done == []
        host.resume()
        await asked
        assert done == ["done"]

    play(story)


def test_the_time_that_the_disk_was_busy_comes_before_a_threads_result():
    async def story(u: Universe) -> None:
        host = HostLoop(u.loop, "one", Random(1), busy_ns=lambda: 3_000_000_000)

        async def work() -> None:
            await host.offload(lambda: None)

        await host.run(work())
        assert 3.0 < u.loop.time() < 3.01

    play(story)


def test_a_failure_that_nobody_handles_names_its_host():
    async def story(u: Universe) -> None:
        def fail() -> None:
            raise ValueError("unseen")

        u.host("one").call_soon(fail)
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match="on one"):
        play(story)


def test_the_order_of_hosts_is_seeded_and_a_hosts_own_order_is_kept():
    def order(seed: int) -> list[str]:
        loop = SimLoop(seed, [20_000])
        hosts = [HostLoop(loop, name, Random(1)) for name in "abcde"]
        done: list[str] = []
        for host in hosts:
            for number in (1, 2):
                host.call_at(1 + number / 1e6, done.append, f"{host.host}{number}")
        loop.run_until_complete(asyncio.sleep(2))
        loop.close()
        assert all(done.index(f"{name}1") < done.index(f"{name}2") for name in "abcde")
        return done

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
    assert min(late) >= 0
    assert 0 < sum(each > 0 for each in late) < len(late)
    assert max(late) < 0.001

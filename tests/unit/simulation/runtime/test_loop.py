"""The event loop in virtual time, and the environment of a simulated machine."""

import asyncio
import gc
import time

import pytest

from kbroker.simulation.runtime.environment import SimClock, simulated_environment
from kbroker.simulation.runtime.loop import SimLoop, SpinningError, StalledError, UnhandledError

HOUR = 3600.0


@pytest.fixture
def loop():
    loop = SimLoop(1)
    yield loop
    loop.close()


def test_hours_pass_at_once(loop):
    async def wait() -> None:
        await asyncio.sleep(10 * HOUR)
        assert loop.time() == 10 * HOUR
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(300 * HOUR):
                await loop.create_future()
        assert loop.time() == 310 * HOUR

    started = time.monotonic()
    loop.run_until_complete(wait())
    assert time.monotonic() - started < 60, "on a busy machine too"


def test_timers_fire_in_order_and_on_time(loop):
    calls: list[tuple[str, int]] = []

    def call(name: str) -> None:
        calls.append((name, loop.elapsed_ns))

    loop.call_later(0.005, call, "later")
    loop.call_later(0.001, call, "first")
    loop.call_later(0.001, call, "second")
    loop.call_at(0.003, call, "cancelled").cancel()
    loop.call_soon(call, "cancelled").cancel()
    loop.call_soon(call, "now")
    loop.call_later(0.006, loop.stop)
    loop.run_forever()
    assert calls == [("now", 0), ("first", 1_000_000), ("second", 1_000_000), ("later", 5_000_000)]


def test_clocks_do_not_drift_from_the_loop(loop):
    clock, skewed = SimClock(loop), SimClock(loop, skew_ms=-5000)

    async def tick() -> None:
        mono, wall = clock.mono_ms(), clock.now_ms()
        for i in range(1, 3000):
            await asyncio.sleep(0.007)
            assert clock.mono_ms() - mono == clock.now_ms() - wall == 7 * i

    loop.run_until_complete(tick())
    assert (skewed.now_ms(), skewed.mono_ms()) == (clock.now_ms() - 5000, clock.mono_ms())


def test_waiting_for_nothing_is_an_error(loop):
    async def wait() -> None:
        await loop.create_future()

    task = loop.create_task(wait())
    with pytest.raises(StalledError):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)


def test_spinning_is_an_error(loop):
    def spin() -> None:
        loop.call_soon(spin)

    spin()
    with pytest.raises(SpinningError):
        loop.run_forever()


def test_an_unhandled_exception_is_an_error(loop):
    for schedule in (loop.call_soon, lambda callback: loop.call_later(1, callback)):
        schedule(lambda: 1 / 0)
        with pytest.raises(UnhandledError) as caught:
            loop.run_until_complete(asyncio.sleep(2))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_offloaded_functions_take_time_and_run_although_the_caller_gives_up(loop):
    calls: list[int] = []

    async def work() -> None:
        before = loop.time()
        results = await asyncio.gather(
            *(loop.run_in_executor(None, lambda n=n: calls.append(n) or n) for n in range(20))
        )
        assert results == list(range(20))
        assert loop.time() > before
        with pytest.raises(KeyError):
            await loop.run_in_executor(None, {}.__getitem__, 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.run_in_executor(None, calls.append, 20), 0.000_001)
        await asyncio.sleep(1)

    loop.run_until_complete(work())
    assert sorted(calls) == list(range(21)) != calls


def test_an_environment_offloads_on_its_loop_and_depends_on_seed_and_name():
    one, same, other = (simulated_environment(seed) for seed in (5, 5, 6))
    neighbour = simulated_environment(5, loop=one.loop, name="neighbour")

    async def work() -> bytes:
        await one.offload(one.disk.write_atomic, "file", b"content")
        return await one.offload(one.disk.read, "file")

    assert one.loop.run_until_complete(work()) == b"content"
    assert not neighbour.disk.exists("file")
    number = one.random.random()
    assert number == same.random.random()
    assert number not in (other.random.random(), neighbour.random.random())
    for environment in (one, same, other):
        environment.loop.close()


def test_pending_tasks_are_discarded_with_their_loop(caplog):
    """A task that is destroyed while it is pending would be logged in a later test."""
    loop = SimLoop()

    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(1))
    loop.close()
    del loop
    gc.collect()
    assert caplog.messages == []

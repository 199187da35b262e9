import asyncio
import time

import pytest

from kbroker.simulation.runtime.environment import simulated_environment
from kbroker.simulation.runtime.loop import SimLoop, SpinningError, StalledError, UnhandledError

HOUR = 3600.0


@pytest.fixture
def loop():
    loop = SimLoop(1)
    yield loop
    loop.close()


def test_hours_pass_at_once(loop):
    async def wait() -> list[float]:
        moments = [loop.time()]
        await asyncio.sleep(10 * HOUR)
        moments.append(loop.time())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(300 * HOUR):
                await loop.create_future()
        moments.append(loop.time())
        return moments

    began = time.monotonic()
    assert loop.run_until_complete(wait()) == [0.0, 10 * HOUR, 310 * HOUR]
    assert time.monotonic() - began < 1.0


def test_timers_fire_in_order_and_at_their_time(loop):
    seen: list[tuple[str, int]] = []

    def note(name: str) -> None:
        seen.append((name, loop.elapsed_ns))

    loop.call_later(0.005, note, "later")
    loop.call_later(0.001, note, "soon")
    loop.call_later(0.001, note, "soon too")
    loop.call_at(0.003, note, "at").cancel()
    loop.call_soon(note, "now")
    loop.call_later(0.006, loop.stop)
    loop.run_forever()
    assert seen == [("now", 0), ("soon", 1_000_000), ("soon too", 1_000_000), ("later", 5_000_000)]


def test_milliseconds_do_not_drift(loop):
    clock = simulated_environment(1, loop=loop).clock

    async def tick() -> None:
        began, wall = clock.mono_ms(), clock.now_ms()
        for i in range(1, 3000):
            await asyncio.sleep(0.007)
            assert clock.mono_ms() - began == clock.now_ms() - wall == 7 * i

    loop.run_until_complete(tick())


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


def test_a_failure_that_nobody_handles_is_an_error(loop):
    def fail() -> None:
        raise ZeroDivisionError

    loop.call_later(1, fail)
    with pytest.raises(UnhandledError) as caught:
        loop.run_until_complete(asyncio.sleep(2))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    loop.call_soon(fail)
    with pytest.raises(UnhandledError):
        loop.run_until_complete(asyncio.sleep(0))


def test_jobs_of_threads_take_their_time(loop):
    done: list[int] = []

    async def work() -> None:
        before = loop.time()
        results = await asyncio.gather(
            *(loop.run_in_executor(None, lambda n=n: done.append(n) or n) for n in range(20))
        )
        assert results == list(range(20))
        assert loop.time() > before
        with pytest.raises(KeyError):
            await loop.run_in_executor(None, {}.__getitem__, 1)

    loop.run_until_complete(work())
    assert sorted(done) == list(range(20))
    assert done != sorted(done)


def test_a_job_runs_though_nobody_waits_for_it_any_more(loop):
    done: list[int] = []

    async def work() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.run_in_executor(None, done.append, 1), 0.000_001)
        await asyncio.sleep(1)

    loop.run_until_complete(work())
    assert done == [1]


def test_the_world_offloads_on_its_loop():
    environment = simulated_environment(5)

    async def work() -> bytes:
        await environment.offload(environment.disk.write_atomic, "file", b"content")
        return await environment.offload(environment.disk.read, "file")

    assert environment.loop.run_until_complete(work()) == b"content"
    assert environment.loop.time() > 0
    environment.loop.close()


def test_a_world_is_its_seed():
    one, same, other = (simulated_environment(seed) for seed in (5, 5, 6))
    assert one.random.random() == same.random.random() != other.random.random()
    neighbour = simulated_environment(5, loop=one.loop, name="neighbour")
    assert neighbour.loop is one.loop
    assert neighbour.disk is not one.disk
    assert neighbour.random.random() != one.random.random()
    for environment in (one, same, other):
        environment.loop.close()

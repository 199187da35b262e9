"""The event loop in virtual time, and the environment of a simulated machine."""

import asyncio

import pytest

from kbroker.simulation.runtime.loop import SimLoop, SpinningError, StalledError, UnhandledError


@pytest.fixture
def loop():
    loop = SimLoop(1)
    yield loop
    loop.close()


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

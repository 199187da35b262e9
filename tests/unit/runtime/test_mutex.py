"""The order in which waiters acquire a mutex, and cancelled waiters."""

import asyncio

from kbroker.runtime.mutex import Mutex
from kbroker.simulation.runtime.loop import SimLoop


def test_waiters_acquire_the_mutex_in_the_order_of_arrival() -> None:
    loop = SimLoop()
    mutex = Mutex(loop)
    entered: list[tuple[str, float]] = []

    async def enter(name: str) -> None:
        async with mutex:
            entered.append((name, loop.time()))
            await asyncio.sleep(1)

    async def main() -> None:
        tasks = {name: loop.create_task(enter(name)) for name in ("a", "b", "c", "d")}
        await asyncio.sleep(0.5)
        tasks["b"].cancel()
        await asyncio.wait(tasks.values())
        assert tasks["b"].cancelled()

    loop.run_until_complete(main())
    loop.close()
    assert [(name, int(time)) for name, time in entered] == [("a", 0), ("c", 1), ("d", 2)]


def test_a_waiter_that_is_cancelled_after_it_has_acquired_the_mutex_releases_it() -> None:
    loop = SimLoop()
    mutex = Mutex(loop)

    async def hold() -> None:
        async with mutex:
            pass

    async def main() -> None:
        await mutex.__aenter__()
        waiter = loop.create_task(hold())
        await asyncio.sleep(0)
        await mutex.__aexit__()
        waiter.cancel()
        await asyncio.wait([waiter])
        assert waiter.cancelled()
        await asyncio.wait_for(hold(), 1)

    loop.run_until_complete(main())
    loop.close()

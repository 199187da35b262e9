"""A periodic task runs while it is needed, one run at a time."""

import asyncio

import pytest

from kbroker.runtime.periodic_task import PeriodicTask
from kbroker.simulation.runtime.environment import simulated_environment
from kbroker.simulation.runtime.loop import SimLoop


def test_a_periodic_task_runs_one_at_a_time_while_it_is_needed() -> None:
    loop = SimLoop()
    environment = simulated_environment(1, loop=loop)
    started_s: list[float] = []
    is_needed = True

    async def work() -> None:
        started_s.append(loop.time())
        await asyncio.sleep(5)
        if len(started_s) == 2:
            raise ValueError("once")

    async def scenario() -> None:
        nonlocal is_needed
        task = PeriodicTask(environment, "work", lambda: 10_000, work, lambda: is_needed)
        task.schedule()
        task.schedule()
        await asyncio.sleep(42)
        assert started_s == [10, 25, 40]
        task.schedule()
        is_needed = False
        await asyncio.sleep(1000)
        assert len(started_s) == 3
        is_needed = True
        task.schedule()
        await asyncio.sleep(11)
        before_s = loop.time()
        await task.stop()
        assert loop.time() - before_s == pytest.approx(4)
        task.schedule()
        await asyncio.sleep(100)
        assert len(started_s) == 4

    loop.run_until_complete(scenario())
    loop.close()

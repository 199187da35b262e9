"""A response in the purgatory ends once: it is completed, expires, or is abandoned."""

import asyncio

from kbroker.runtime.delayed_response import DelayedResponse, Purgatory
from kbroker.simulation.runtime.environment import simulated_environment
from kbroker.simulation.runtime.loop import SimLoop


class Waiting(DelayedResponse[str]):
    def __init__(self, purgatory: Purgatory, now_ms: int, wait_ms: int, responses: list[str]) -> None:
        super().__init__(purgatory)
        purgatory.set(self, now_ms + wait_ms)
        self.on_complete(responses.append)

    def expire(self) -> None:
        self.complete("expired")


def test_operations_end_once() -> None:
    loop = SimLoop()
    environment = simulated_environment(1, loop=loop)
    purgatory, now_ms = Purgatory(environment), environment.clock.mono_ms()
    responses: list[str] = []
    late, early, completed, abandoned = (Waiting(purgatory, now_ms, ms, responses) for ms in (300, 100, 200, 50))
    completed.complete("completed")
    abandoned.abandon()
    assert (len(purgatory), responses) == (2, ["completed"])
    loop.run_until_complete(asyncio.sleep(0.25))
    assert (len(purgatory), responses) == (1, ["completed", "expired"])
    early.complete("too late")
    loop.run_until_complete(asyncio.sleep(0.25))
    late.abandon()
    assert (len(purgatory), responses) == (0, ["completed", "expired", "expired"])
    loop.close()


def test_an_operation_can_be_awaited() -> None:
    loop = SimLoop()
    environment = simulated_environment(1, loop=loop)
    purgatory, now_ms = Purgatory(environment), environment.clock.mono_ms()

    async def wait() -> tuple[str, str]:
        operation = Waiting(purgatory, now_ms, 100, [])
        return await operation, await operation

    assert loop.run_until_complete(wait()) == ("expired", "expired")
    loop.close()

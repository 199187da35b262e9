"""Hosts on a simulated network, for tests of the simulation itself. A test is a coroutine that runs once per seed."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, TypeVar

import pytest

from kbroker.simulation.runtime.host_loop import HostLoop
from kbroker.simulation.runtime.loop import SimLoop
from tests.sampling import third_of
from tests.unit.support.async_test import until

S = TypeVar("S", bound="SimulatedHosts")


class SimulatedHosts:
    """A SimLoop and the loops of its hosts."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop = SimLoop(seed)
        self.hosts: dict[str, HostLoop] = {}

    def host(self, name: str) -> HostLoop:
        """Return the loop of a host: a new one if there is none or its process has died."""
        if name not in self.hosts or self.hosts[name].dead:
            self.hosts[name] = HostLoop(self.loop, name, Random(name))
        return self.hosts[name]

    async def start(self) -> None:
        """Called before the test."""

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait in virtual time until a condition holds."""
        await until(condition, seconds)

    def discard(self) -> None:
        for host in self.hosts.values():
            host.discard()

    def run(self: S, test: Callable[[S], Awaitable[None]]) -> None:
        async def run() -> None:
            await self.start()
            await test(self)

        try:
            self.loop.run_until_complete(asyncio.wait_for(run(), 10_000))
        finally:
            self.discard()
            self.loop.close()


def simulated(make: Callable[[int], S], seeds: Sequence[int]) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Turn a coroutine function into a test that runs once per seed, of which a normal run has a third.

    Its first argument is the simulation; further ones are parameters of the test.
    """

    def decorate(test: Callable[..., Awaitable[None]]) -> Any:
        def run(seed: int, **parameters: object) -> None:
            make(seed).run(lambda simulation: test(simulation, **parameters))

        _, *others = inspect.signature(test).parameters.values()
        seed = inspect.Parameter("seed", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = inspect.Signature([seed, *others])  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = test.__name__, test.__doc__  # type: ignore[attr-defined]
        return pytest.mark.parametrize("seed", third_of(seeds))(run)

    return decorate

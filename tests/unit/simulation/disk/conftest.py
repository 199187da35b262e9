"""The disk of a simulated machine."""

from collections.abc import Iterator
from random import Random

import pytest

from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.runtime.environment import SimClock
from kbroker.simulation.runtime.loop import SimLoop


@pytest.fixture
def clock() -> Iterator[SimClock]:
    loop = SimLoop()
    yield SimClock(loop)
    loop.close()


@pytest.fixture
def disk(clock: SimClock) -> SimDisk:
    disk = SimDisk(clock, Random(1))
    disk.makedirs("/d/e")
    disk.sync_dir("/d")
    disk.sync_dir("/")
    return disk

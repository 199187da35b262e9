"""A broker that the coordination service reaches, but no other broker: it is fenced, and others lead its partitions."""

import asyncio

import pytest

from kbroker.simulation.coordination.service import SimCoordination
from tests.unit.simulation.coordination.test_fencing_check import SESSION_S, ThreeBrokers
from tests.unit.simulation.coordination.test_isolated_controller import controllers, links
from tests.unit.support.simulated_hosts import simulated

SEEDS = range(3)
ALL = [1, 2, 3]
# The controller is found silent within a few seconds, and then all brokers must be for one and a half session timeouts.
GIVING_UP_S = 1.5 * SESSION_S + 15
LONG_S = 60


def follower(s: ThreeBrokers) -> int:
    """Return a broker that is not the controller."""
    return next(number for number in ALL if number not in controllers(s))


def leads_all(s: ThreeBrokers, *brokers: int) -> bool:
    return sum(len(s.led(broker)) for broker in brokers) == 3


@pytest.mark.parametrize("direction", ["both", "from", "to"])
@simulated(ThreeBrokers, SEEDS)
async def test_others_lead_its_partitions(s: ThreeBrokers, direction: str) -> None:
    cut, (controller,) = follower(s), controllers(s)
    others, former = [number for number in ALL if number != cut], s.epoch(cut)
    for source, target in links(cut, direction):
        s.loop.network.faults.cut(source, target)
    await s.until(lambda: not s.led(cut) and leads_all(s, *others), GIVING_UP_S)
    # It joins again, and then stays as it is: it leads nothing that others could lead.
    await s.until(lambda: s.epoch(cut) > former, 20)
    epoch = s.epoch(cut)
    await asyncio.sleep(LONG_S)
    assert (s.epoch(cut), s.led(cut), controllers(s)) == (epoch, [], [controller])
    for source, target in links(cut, direction):
        s.loop.network.faults.restore(source, target)
    await s.until(lambda: all(s.isr(cut, index) == ALL for index in range(3)), LONG_S)


@simulated(ThreeBrokers, SEEDS)
async def test_one_broker_that_reaches_it_is_enough(s: ThreeBrokers) -> None:
    """That one relays its requests to the controller."""
    cut, (controller,) = follower(s), controllers(s)
    epoch, led = s.epoch(cut), s.led(cut)
    s.loop.network.faults.partition(f"broker{cut}", f"broker{controller}")
    await asyncio.sleep(LONG_S)
    assert (s.epoch(cut), s.led(cut)) == (epoch, led)


@simulated(ThreeBrokers, SEEDS)
async def test_a_broker_that_is_left_alone_with_its_controller_goes_by_it(s: ThreeBrokers) -> None:
    """Of two brokers that cannot reach each other the controller is the one that stays."""
    cut, (controller,) = follower(s), controllers(s)
    (third,) = {*ALL} - {cut, controller}
    await s.machines[third].stop()
    await s.until(lambda: leads_all(s, cut, controller), 10)
    epoch = s.epoch(controller)
    s.loop.network.faults.partition(f"broker{cut}", f"broker{controller}")
    await s.until(lambda: not s.led(cut) and leads_all(s, controller), GIVING_UP_S)
    assert (s.epoch(controller), controllers(s)) == (epoch, [controller])


@pytest.mark.parametrize("end", ["stop", "kill", "power_off", "pause"])
@simulated(ThreeBrokers, SEEDS)
async def test_a_controller_that_dies_is_replaced(s: ThreeBrokers, end: str) -> None:
    """The others reach each other: they wait for the end of its session, and keep their roles."""
    (controller,) = controllers(s)
    others = [number for number in ALL if number != controller]
    epochs = [s.epoch(number) for number in others]
    ended = getattr(s.machines[controller], end)()
    if ended is not None:
        await ended
    await s.until(lambda: leads_all(s, *others), 3 * SESSION_S)
    await asyncio.sleep(LONG_S)
    assert [s.epoch(number) for number in others] == epochs


@simulated(ThreeBrokers, SEEDS)
async def test_the_last_broker_stays_when_its_controller_dies(s: ThreeBrokers) -> None:
    last, (controller,) = follower(s), controllers(s)
    (third,) = {*ALL} - {last, controller}
    epoch = s.epoch(last)
    s.machines[third].power_off()
    s.machines[controller].power_off()
    await s.until(lambda: leads_all(s, last) and s.controls(last), 3 * SESSION_S)
    assert s.epoch(last) == epoch


class LongSessions(ThreeBrokers):
    """The service grants longer sessions than the brokers ask for."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        open_session = self.service.session

        def session(loop: asyncio.AbstractEventLoop, host: str, timeout_ms: int = 0) -> object:
            return open_session(loop, host, round(4000 * SESSION_S))

        self.service.session = session  # type: ignore[assignment, method-assign]


@simulated(LongSessions, SEEDS)
async def test_the_session_timeout_is_the_one_of_the_service(s: LongSessions) -> None:
    assert isinstance(s.service, SimCoordination)
    cut = follower(s)
    led = s.led(cut)
    for source, target in links(cut, "both"):
        s.loop.network.faults.cut(source, target)
    await asyncio.sleep(1.5 * 4 * SESSION_S - 1)
    assert s.led(cut) == led
    await s.until(lambda: not s.led(cut), GIVING_UP_S)

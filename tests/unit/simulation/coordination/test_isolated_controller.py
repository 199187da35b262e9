"""A controller that only the coordination service reaches: another broker becomes the controller."""

import asyncio
from collections.abc import Iterator

import pytest

from kbroker.common import ANONYMOUS
from tests.unit.simulation.coordination.test_fencing_check import SESSION_S, ThreeBrokers
from tests.unit.support.simulated_hosts import simulated

SEEDS = range(3)
ALL = [1, 2, 3]
# The others must be silent for one and a half session timeouts; then there is an election.
RESIGNATION_S = 1.5 * SESSION_S + 8
# Enough for several sessions to expire, and for several resignations.
LONG_S = 60


def controllers(s: ThreeBrokers) -> list[int]:
    return [number for number, machine in s.machines.items() if machine.broker and s.controls(number)]


def links(controller: int, direction: str) -> Iterator[tuple[str, str]]:
    """Yield the links between the controller and the others in this direction of the controller, or in both."""
    for other in {*ALL} - {controller}:
        if direction != "to":
            yield f"broker{controller}", f"broker{other}"
        if direction != "from":
            yield f"broker{other}", f"broker{controller}"


@pytest.mark.parametrize("direction", ["both", "from", "to"])
@simulated(ThreeBrokers, SEEDS)
async def test_another_broker_becomes_the_controller(s: ThreeBrokers, direction: str) -> None:
    (former,) = controllers(s)
    others = [number for number in ALL if number != former]
    faults = s.loop.network.faults
    for source, target in links(former, direction):
        faults.cut(source, target)
    await s.until(lambda: controllers(s) and controllers(s) != [former], RESIGNATION_S)
    # ISRs change, and topics are created, at the request of a broker that is not the controller.
    await s.until(lambda: all(s.isr(others[0], index) == others for index in range(3)), 10)
    (other,) = {*others} - {*controllers(s)}
    creating = s.broker(other).services.auto_topic_creation.auto_create_topic("created", (ANONYMOUS, "10.0.0.7"))
    await asyncio.wait_for(s.machines[other].loop.run(creating), 10)
    for source, target in links(former, direction):
        faults.restore(source, target)
    await s.until(lambda: all(s.isr(former, index) == ALL for index in range(3)), LONG_S)


@simulated(ThreeBrokers, SEEDS)
async def test_the_former_controller_resigns_once(s: ThreeBrokers) -> None:
    """It joins the cluster again during the cut, and then stays as it is."""
    (former,) = controllers(s)
    for source, target in links(former, "both"):
        s.loop.network.faults.cut(source, target)
    await s.until(lambda: controllers(s) and controllers(s) != [former], RESIGNATION_S)
    elected = controllers(s)
    await s.until(lambda: s.epoch(former) > 0 and s.machines[former].broker is not None, 20)
    await asyncio.sleep(10)
    epoch = s.epoch(former)
    await asyncio.sleep(LONG_S)
    assert controllers(s) == elected
    assert s.epoch(former) == epoch


@pytest.mark.parametrize("end", ["stop", "kill", "power_off", "pause"])
@simulated(ThreeBrokers, SEEDS)
async def test_a_controller_that_outlives_the_others_stays(s: ThreeBrokers, end: str) -> None:
    (controller,) = controllers(s)
    epoch = s.epoch(controller)
    for number in {*ALL} - {controller}:
        ended = getattr(s.machines[number], end)()
        if ended is not None:
            await ended
    await asyncio.sleep(LONG_S)
    assert s.controls(controller)
    assert s.epoch(controller) == epoch


@pytest.mark.parametrize("fault", ["one link", "slow links", "a pause"])
@simulated(ThreeBrokers, SEEDS)
async def test_a_controller_that_others_reach_stays(s: ThreeBrokers, fault: str) -> None:
    (controller,) = controllers(s)
    epoch = s.epoch(controller)
    first, second = [f"broker{number}" for number in ALL if number != controller]
    own, faults = f"broker{controller}", s.loop.network.faults
    match fault:
        case "one link":
            faults.partition(own, first)
        case "slow links":
            for other in (first, second):
                faults.latency(own, other, (0.2, 0.4))
                faults.latency(other, own, (0.2, 0.4))
        case _:
            # Shorter than a session, and the loop's time has passed meanwhile.
            s.machines[controller].pause()
            await asyncio.sleep(0.6 * SESSION_S)
            s.machines[controller].resume()
    await asyncio.sleep(LONG_S)
    assert s.controls(controller)
    assert s.epoch(controller) == epoch

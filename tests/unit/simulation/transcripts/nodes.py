"""The machine, time, the network and the coordination service: what happens to a broker from outside."""

import asyncio
from collections.abc import Callable
from fnmatch import fnmatchcase
from random import Random

from kbroker.simulation.coordination.service import SimCoordination
from kbroker.simulation.runtime.crash import MachineCrashed
from tests.unit.simulation.transcripts.files import path_of
from tests.unit.simulation.transcripts.play import CLIENT, NAME, SEED, SETTLE_S, Play
from tests.unit.simulation.transcripts.table import Table, configs_of, options, seconds

COMMANDS = Table()


@COMMANDS.add("with <configs...>")
async def configure(play: Play, configs: list[str]) -> list[str]:
    """First of all: configs of the broker; `coordination`: it uses a service, else it keeps its own on its disk."""
    plain, named = options(configs)
    play.configs.update(named)
    if "coordination" in plain:
        play.coordination = SimCoordination(play.loop, Random(f"{SEED}/coordination"))
    return []


@COMMANDS.add("start <configs...>")
async def start(play: Play, configs: list[str]) -> list[str]:
    """With what it repairs on the way."""
    return await play.start(configs_of(configs))


@COMMANDS.add("stop")
async def stop(play: Play) -> list[str]:
    """SIGTERM."""
    if play.machine.broker is None:
        return ["it does not run"]
    await play.machine.stop()
    await asyncio.sleep(SETTLE_S)
    return ["stopped"]


@COMMANDS.add("kill")
async def kill(play: Play) -> list[str]:
    """kill -9: what was written stays in the page cache."""
    play.machine.kill()
    await asyncio.sleep(SETTLE_S)
    return []


@COMMANDS.add("power off")
async def power_off(play: Play) -> list[str]:
    """Nothing is left but what was synced, also if no broker runs."""
    if play.machine.broker is None:
        play.machine.disk = play.machine.disk.after_crash(power=True)
    else:
        _lose_power(play)
    return []


def _lose_power(play: Play) -> None:
    play.silent = True
    play.machine.power_off()


@COMMANDS.add("pause")
async def pause(play: Play) -> list[str]:
    """SIGSTOP."""
    play.machine.pause()
    return []


@COMMANDS.add("resume")
async def resume(play: Play) -> list[str]:
    play.machine.resume()
    await asyncio.sleep(SETTLE_S)
    return []


@COMMANDS.add("kill before <operation> of <file>")
async def kill_before(play: Play, operation: str, file: str) -> list[str]:
    """Operations: write, truncate, sync, sync_dir, create, mkdir, rename, unlink, rmdir. The file may have a `*`."""
    _arm(play, operation, file, lambda: play.machine.kill())
    return []


@COMMANDS.add("power off before <operation> of <file>")
async def power_off_before(play: Play, operation: str, file: str) -> list[str]:
    _arm(play, operation, file, lambda: _lose_power(play))
    return []


def _arm(play: Play, operation: str, file: str, end: Callable[[], None]) -> None:
    """The machine ends in the place of the first such change of its disk."""
    disk = play.machine.disk
    trace = disk.trace
    assert trace is not None

    def die_instead(what: str, path: str, size: int) -> None:
        if what == operation and fnmatchcase(path, path_of(file)):
            play.note(f"dies before {operation} of {path}")
            end()
            raise MachineCrashed
        trace(what, path, size)

    disk.trace = die_instead


# Time.


@COMMANDS.add("wait <time>")
async def wait(play: Play, time: str) -> list[str]:
    await asyncio.sleep(seconds(time))
    return []


@COMMANDS.add("clock <by>")
async def clock(play: Play, by: str) -> list[str]:
    """The wall clock jumps."""
    play.machine.clock.skew_ms += round(seconds(by) * 1000)
    return []


# The network.


@COMMANDS.add("network loses <what>")
async def lose(play: Play, what: str) -> list[str]:
    """`requests`, `answers` or `everything` between clients and the broker."""
    faults = play.loop.network.faults
    if what != "answers":
        faults.cut(CLIENT, NAME)
    if what != "requests":
        faults.cut(NAME, CLIENT)
    return []


@COMMANDS.add("network mended")
async def restore(play: Play) -> list[str]:
    play.loop.network.faults.heal_all()
    await asyncio.sleep(SETTLE_S)
    return []


@COMMANDS.add("reset connections")
async def reset(play: Play) -> list[str]:
    """What is on its way over them is lost; a client's next request takes a new one."""
    for end in play.loop.network.faults.connections(CLIENT, NAME):
        play.loop.network.faults.reset(end)
    await asyncio.sleep(SETTLE_S)
    return []


# The coordination service.


def _service(play: Play) -> SimCoordination:
    assert play.coordination is not None, "say `with coordination` first"
    return play.coordination


@COMMANDS.add("coordination out of reach")
async def cut_off(play: Play) -> list[str]:
    _service(play).cut(NAME)
    return []


@COMMANDS.add("coordination back")
async def heal(play: Play) -> list[str]:
    _service(play).heal(NAME)
    await asyncio.sleep(SETTLE_S)
    return []


@COMMANDS.add("sessions")
async def sessions(play: Play) -> list[str]:
    """Those of brokers that the service knows and that are not over."""
    return [f"sessions: {_service(play).sessions(NAME)}"]


@COMMANDS.add("session expires")
async def expire(play: Play) -> list[str]:
    for number in _service(play).sessions(NAME):
        _service(play).expire(number)
    await asyncio.sleep(SETTLE_S)
    return []

"""Commands for the machine, time, the network and the coordination service."""

import asyncio
from collections.abc import Callable
from fnmatch import fnmatchcase
from random import Random

from kbroker.simulation.coordination.service import SimCoordination
from kbroker.simulation.disk.device import MachineCrashed
from tests.unit.simulation.transcripts.files import path_of
from tests.unit.simulation.transcripts.play import CLIENT, NAME, SEED, SETTLE_S, Play
from tests.unit.simulation.transcripts.table import Table, configs_of, options, seconds

COMMANDS = Table()


@COMMANDS.add("with <configs...>")
def configure(play: Play, configs: list[str]) -> None:
    """Set the broker's configs, as the first command. With `coordination` its metadata is in a service, not on disk."""
    plain, named = options(configs)
    play.configs.update(named)
    if "coordination" in plain:
        play.coordination = SimCoordination(play.loop, Random(f"{SEED}/coordination"))


@COMMANDS.add("start <configs...>")
async def start(play: Play, configs: list[str]) -> list[str]:
    """Start the broker. Prints what recovery repairs."""
    return await play.start(configs_of(configs))


@COMMANDS.add("stop")
async def stop(play: Play) -> str:
    """SIGTERM."""
    if play.machine.broker is None:
        return "not running"
    await play.machine.stop()
    await asyncio.sleep(SETTLE_S)
    return "stopped"


@COMMANDS.add("kill", settles=True)
def kill(play: Play) -> None:
    """Kill the process (kill -9). The page cache survives."""
    play.machine.kill()


@COMMANDS.add("power off")
def power_off(play: Play) -> None:
    """Lose power: only synced data survives. Works without a running broker, too."""
    if play.machine.broker is None:
        play.machine.disk = play.machine.disk.after_crash(power=True)
    else:
        _lose_power(play)


def _lose_power(play: Play) -> None:
    play.power_lost = True
    play.machine.power_off()


@COMMANDS.add("pause")
def pause(play: Play) -> None:
    """Pause the process (SIGSTOP)."""
    play.machine.pause()


@COMMANDS.add("resume", settles=True)
def resume(play: Play) -> None:
    play.machine.resume()


@COMMANDS.add("kill before <operation> of <file>")
def kill_before(play: Play, operation: str, file: str) -> None:
    """Kill the process instead of the next such change of a file, which may contain a `*`.

    Operations: write, truncate, sync, sync_dir, create, mkdir, rename, unlink, rmdir.
    """
    _crash_before(play, operation, file, lambda: play.machine.kill())


@COMMANDS.add("power off before <operation> of <file>")
def power_off_before(play: Play, operation: str, file: str) -> None:
    _crash_before(play, operation, file, lambda: _lose_power(play))


def _crash_before(play: Play, operation: str, file: str, crash: Callable[[], None]) -> None:
    """Crash instead of the first such change of the disk."""
    disk = play.machine.disk
    trace = disk.trace
    assert trace is not None

    def crash_instead(change: str, path: str, size: int) -> None:
        if change == operation and fnmatchcase(path, path_of(file)):
            play.log(f"dies before {operation} of {path}")
            crash()
            raise MachineCrashed
        trace(change, path, size)

    disk.trace = crash_instead


# Time.


@COMMANDS.add("wait <time>")
async def wait(play: Play, time: str) -> None:
    await asyncio.sleep(seconds(time))


@COMMANDS.add("clock <by>")
def clock(play: Play, by: str) -> None:
    """Let the wall clock jump."""
    play.machine.clock.skew_ms += round(seconds(by) * 1000)


# The network.


@COMMANDS.add("network loses <what>")
def lose(play: Play, what: str) -> None:
    """Lose `requests`, `responses` or `everything` between clients and the broker."""
    faults = play.loop.network.faults
    if what != "responses":
        faults.cut(CLIENT, NAME)
    if what != "requests":
        faults.cut(NAME, CLIENT)


@COMMANDS.add("network healed", settles=True)
def heal_network(play: Play) -> None:
    play.loop.network.faults.heal_all()


@COMMANDS.add("reset connections", settles=True)
def reset(play: Play) -> None:
    """Reset the clients' connections: bytes in flight are lost, and a client's next request opens a new connection."""
    for endpoint in play.loop.network.faults.connections(CLIENT, NAME):
        play.loop.network.faults.reset(endpoint)


# The coordination service.


def _service(play: Play) -> SimCoordination:
    assert play.coordination is not None, "the transcript must begin with `with coordination`"
    return play.coordination


@COMMANDS.add("coordination unreachable")
def cut_off(play: Play) -> None:
    _service(play).cut(NAME)


@COMMANDS.add("coordination reachable", settles=True)
def heal(play: Play) -> None:
    _service(play).heal(NAME)


@COMMANDS.add("sessions")
def sessions(play: Play) -> str:
    """Show the broker's sessions that are alive."""
    return f"sessions: {_service(play).sessions(NAME)}"


@COMMANDS.add("session expires", settles=True)
def expire(play: Play) -> None:
    for number in _service(play).sessions(NAME):
        _service(play).expire(number)

"""Where a transcript plays: a universe with one machine, clients that keep one connection each, the broker's log.

A command prints the broker's new log lines, then what clients were answered. A request that is not answered within
SETTLE_S of virtual time prints `waits`, and its answer with the request before it under the command that brought it.
After each command the invariants must hold.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from kbroker.common import KafkaError
from kbroker.config.values import ConfigError
from kbroker.metadata.store.coordination import CoordinationError
from kbroker.runtime.event_log import LogEvent
from kbroker.simulation.checker.invariants import Invariants
from kbroker.simulation.coordination.service import SimCoordination
from kbroker.simulation.runtime.host_loop import HostCrashed, HostLoop
from kbroker.simulation.runtime.loop import SimLoop
from kbroker.simulation.runtime.machine import DATA, PORT, Machine
from protocol.errors import ErrorCode
from tests.unit.simulation.transcripts import script
from tests.unit.simulation.transcripts.table import Table
from tests.unit.support.client import Client
from tests.unit.support.group_transcript import Names

SEED = 1
SETTLE_S = 0.2
NAME = "broker"
CLIENT = "client"
CONFIGS = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
# Fields of log events whose names say nothing that their values do not.
PLAIN_FIELDS = ("partition", "reason", "repair", "file", "directory")

Work = Callable[[Client], Awaitable[str]]


class LogLines(logging.Handler):
    """Takes the broker's log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # What is refused the client prints.
        if isinstance(record.msg, LogEvent) and record.msg.message != "request refused":
            self.lines.append(line_of(record.msg))

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


def line_of(event: LogEvent) -> str:
    fields = {name: value for name, value in event.fields.items() if value is not None}
    if "repair" in fields:
        # It names the file.
        fields.pop("partition", None)
    # How long it took is a matter of the seed.
    fields.pop("ms", None)
    parts = [str(value) if name in PLAIN_FIELDS else f"{name}={value}" for name, value in fields.items()]
    return shorten(f"{event.message}: {' '.join(parts)}" if parts else event.message)


def shorten(text: str) -> str:
    """Segments by their base offsets alone, paths below the data directory, no random names."""
    text = re.sub(r"\b(\d{20})(?=\.[a-z])", lambda found: str(int(found[1])), text)
    text = re.sub(r"[0-9a-f]{32}", "RANDOM", text)
    return text.replace(f"{DATA}/", "")


class Answered(NamedTuple):
    """What a client was told, and to which command that was, by number and by name."""

    number: int
    command: str
    client: str
    text: str


class Play:
    """`machine` is made by the first command that needs it, with the configs of `with`, if that was said."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.loop = SimLoop(SEED)
        self.host = HostLoop(self.loop, CLIENT, Random(f"{SEED}/{CLIENT}"))
        self.configs = dict(CONFIGS)
        self.coordination: SimCoordination | None = None
        self.members = Names()
        self.ids: dict[str, bytes] = {}
        self._machine: Machine | None = None
        self._tables = tables
        self._invariants: tuple[object, Invariants] | None = None
        self._clients: dict[str, Client] = {}
        # Nothing was damaged that the broker trusts.
        self.sound = True
        # The power has failed: clients do not hear of it.
        self.silent = False
        self._commands = 0
        self._answers: list[Answered] = []
        self._log = LogLines()

    @property
    def machine(self) -> Machine:
        if self._machine is None:
            self._machine = Machine(self.loop, SEED, NAME, self.configs, self.coordination)
            self._machine.disk.worst_case = True
        return self._machine

    def __enter__(self) -> "Play":
        logger = logging.getLogger("kbroker")
        self._level = logger.level
        logger.addHandler(self._log)
        logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *failure: object) -> None:
        logger = logging.getLogger("kbroker")
        logger.removeHandler(self._log)
        logger.setLevel(self._level)
        self.machine.discard()
        self.host.discard()
        self.loop.close()

    def note(self, what: str) -> None:
        """Something that happens in the middle of what a command does."""
        self._log.lines.append(shorten(what))

    # Commands.

    def tell(self, text: str) -> str:
        """The transcript with what its commands print."""
        return self.loop.run_until_complete(script.played(text, self._run))  # type: ignore[no-any-return]

    async def _run(self, command: str) -> list[str]:
        self._commands += 1
        for table in self._tables:
            found = table.find(command)
            if found is not None:
                run, parameters = found
                try:
                    lines = await run(self, **parameters)
                except FileNotFoundError:
                    lines = ["no such file"]
                if self.silent:
                    self.silent = False
                    await self._power_lost()
                self._check()
                return [*self._log.take(), *lines, *self._answered()]
        raise LookupError(f"no such command: {command}")

    def _check(self) -> None:
        broker = self.machine.broker
        if broker is not None and self.sound:
            if self._invariants is None or self._invariants[0] is not broker:
                self._invariants = broker, Invariants(self.machine)
            self._invariants[1].check()

    # Clients.

    async def ask(self, command: str, work: Work, name: str = CLIENT) -> list[str]:
        """Let a client ask something, and see what comes of it. Those with names of their own are named in answers."""
        asked, number = self.host.run(self._asked(name, work)), self._commands

        def answered(future: "asyncio.Future[str]") -> None:
            self._answers.append(Answered(number, command, name, _result(future)))

        asked.add_done_callback(answered)
        await asyncio.sleep(SETTLE_S)
        if asked.done():
            return []
        return ["waits" if name == CLIENT else f"{name} waits"]

    def _answered(self) -> list[str]:
        """The answer to this command as it is; one to an earlier command with that before it."""
        answers, self._answers = sorted(self._answers, key=lambda each: (each.number, each.client)), []
        lines = []
        for number, command, client, text in answers:
            before = f"{client}< " if client != CLIENT else "" if number == self._commands else f"{command}: "
            lines.append(before + text)
        return lines

    async def _asked(self, name: str, work: Work) -> str:
        client = self._clients.get(name)
        if client is None or client.closed.done():
            _, client = await self.host.create_connection(lambda: Client(self.host), NAME, PORT)
            client.ids = self.ids
            self._clients[name] = client
        return await work(client)

    async def _power_lost(self) -> None:
        """Nobody tells the clients; they give their connections up."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        await asyncio.sleep(SETTLE_S)

    # What several tables need.

    async def start(self, configs: Mapping[str, str]) -> list[str]:
        assert self.machine.broker is None, "it runs already"
        self.machine.configs.update(configs)
        try:
            await self.machine.start()
        except HostCrashed:
            return ["died"]
        except (OSError, ConfigError, KafkaError, CoordinationError) as error:
            return [f"does not start: {shorten(repr(error))}"]
        await asyncio.sleep(SETTLE_S)
        return ["serving"]


def _result(future: "asyncio.Future[Any]") -> str:
    error = future.exception()
    if error is None:
        return str(future.result())
    if isinstance(error, OSError):
        return {"ConnectionResetError": "connection lost", "ConnectionRefusedError": "nobody listens"}.get(
            type(error).__name__, type(error).__name__
        )
    raise error


def place(text: str) -> tuple[str, int]:
    """`orders-0`."""
    topic, _, index = text.rpartition("-")
    return topic, int(index)


def code(number: int) -> str:
    return ErrorCode(number).name

"""Plays a transcript on a simulation: one machine, clients with a connection each, the broker's log.

A command prints the broker's new log lines, then the clients' responses. A request without a response within SETTLE_S
of virtual time prints `waits`; its response is printed, after the request, below the command that caused it. The
invariants must hold after each command.
"""

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from kbroker.common import KafkaError
from kbroker.config.values import ConfigError
from kbroker.coordination.interface import CoordinationError
from kbroker.runtime.event_log import LogEvent
from kbroker.simulation.coordination.service import SimCoordination
from kbroker.simulation.invariants.broker import Invariants
from kbroker.simulation.runtime.host_loop import HostCrashed, HostLoop
from kbroker.simulation.runtime.loop import SimLoop
from kbroker.simulation.runtime.machine import DATA, PORT, Machine
from protocol.errors import ErrorCode
from tests.unit.simulation.transcripts import script
from tests.unit.simulation.transcripts.table import Table
from tests.unit.support.client import Client
from tests.unit.support.transcript_names import Names

SEED = 1
SETTLE_S = 0.2
NAME = "broker"
CLIENT = "client"
CONFIGS = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
# Fields of log events that are printed without their names.
PLAIN_FIELDS = ("partition", "reason", "repair", "file", "directory")

Send = Callable[[Client], Awaitable[str]]


class LogLines(logging.Handler):
    """Collects the broker's log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # The client prints the error of its request.
        if isinstance(record.msg, LogEvent) and record.msg.message != "request refused":
            self.lines.append(line_of(record.msg))

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


def line_of(event: LogEvent) -> str:
    fields = {name: value for name, value in event.fields.items() if value is not None}
    if "repair" in fields:
        # The file's path contains the partition.
        fields.pop("partition", None)
    # Durations depend on the seed.
    fields.pop("ms", None)
    parts = [str(value) if name in PLAIN_FIELDS else f"{name}={value}" for name, value in fields.items()]
    return shorten(f"{event.message}: {' '.join(parts)}" if parts else event.message)


def shorten(text: str) -> str:
    """Shorten segment names to the base offset and paths to those below the data directory; hide random ids."""
    text = re.sub(r"\b(\d{20})(?=\.[a-z])", lambda match: str(int(match[1])), text)
    text = re.sub(r"[0-9a-f]{32}", "RANDOM", text)
    return text.replace(f"{DATA}/", "")


class ClientResponse(NamedTuple):
    """A client's response and the command, with its number, that sent the request."""

    number: int
    command: str
    client: str
    text: str


class Play:
    """`machine` is created by the first command that needs it, with the configs of `with`, if any."""

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
        self.checks_invariants = True
        # Power is lost: the clients' connections must be closed.
        self.power_lost = False
        self._commands = 0
        self._responses: list[ClientResponse] = []
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

    def log(self, text: str) -> None:
        """Print an event that happens while a command runs."""
        self._log.lines.append(shorten(text))

    # Commands.

    def run(self, text: str) -> str:
        """Return the transcript with the output of its commands."""
        return self.loop.run_until_complete(script.run(text, self._run_command))  # type: ignore[no-any-return]

    async def _run_command(self, command: str) -> list[str]:
        self._commands += 1
        for table in self._tables:
            match = table.find(command)
            if match is not None:
                pattern, parameters = match
                try:
                    output = pattern.run(self, **parameters)
                    if inspect.isawaitable(output):
                        output = await output
                except FileNotFoundError:
                    output = "no such file"
                if pattern.settles:
                    await asyncio.sleep(SETTLE_S)
                if self.power_lost:
                    self.power_lost = False
                    await self._close_clients()
                self._check()
                lines = [output] if isinstance(output, str) else output or []
                return [*self._log.take(), *lines, *self._new_responses()]
        raise LookupError(f"no such command: {command}")

    def _check(self) -> None:
        broker = self.machine.broker
        if broker is not None and self.checks_invariants:
            if self._invariants is None or self._invariants[0] is not broker:
                self._invariants = broker, Invariants(self.machine)
            self._invariants[1].check()

    # Clients.

    async def request(self, command: str, send: Send, name: str = CLIENT) -> list[str]:
        """Send a client's request and collect its response. The output names clients other than CLIENT."""
        result, number = self.host.run(self._send(name, send)), self._commands

        def on_done(future: "asyncio.Future[str]") -> None:
            self._responses.append(ClientResponse(number, command, name, _result(future)))

        result.add_done_callback(on_done)
        await asyncio.sleep(SETTLE_S)
        if result.done():
            return []
        return ["waits" if name == CLIENT else f"{name} waits"]

    def _new_responses(self) -> list[str]:
        """Return the responses; those to earlier commands are preceded by their command."""
        responses, self._responses = sorted(self._responses, key=lambda each: (each.number, each.client)), []
        lines = []
        for number, command, client, text in responses:
            before = f"{client}< " if client != CLIENT else "" if number == self._commands else f"{command}: "
            lines.append(before + text)
        return lines

    async def _send(self, name: str, send: Send) -> str:
        client = self._clients.get(name)
        if client is None or client.closed.done():
            _, client = await self.host.create_connection(lambda: Client(self.host), NAME, PORT)
            client.ids = self.ids
            self._clients[name] = client
        return await send(client)

    async def _close_clients(self) -> None:
        """Close the clients' connections, which they would notice only by a timeout."""
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
        return {"ConnectionResetError": "connection lost", "ConnectionRefusedError": "connection refused"}.get(
            type(error).__name__, type(error).__name__
        )
    raise error


def tp(text: str) -> tuple[str, int]:
    """Parse a partition such as `orders-0`."""
    topic, _, index = text.rpartition("-")
    return topic, int(index)


def code(number: int) -> str:
    return ErrorCode(number).name

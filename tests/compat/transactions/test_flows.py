"""Every input exactly once, whoever is killed: consume-transform-produce programs of three clients, each in two
processes, with the offsets in the transaction.

One campaign for all clients at once, then each client's result is a test. Where the suite starts the broker, that is
killed, too: at random moments, and when it has done something of which no client has got the answer.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import pytest

from protocol.apis import ApiKey
from tests.compat.crash.kills import repaired
from tests.compat.crash.line import Line
from tests.compat.reports import reports
from tests.compat.support import DEADLINE_S, OUTSIDE, BrokerProcess, eventually, running_broker
from tests.compat.transactions.clients import COMMITTED, UNCOMMITTED
from tests.compat.transactions.confluent import ConfluentClient
from tests.compat.transactions.conftest import PROMPT, REPORT
from tests.compat.transactions.flows import (
    PARTITIONS,
    Flow,
    Source,
    commits,
    create,
    drained,
    meanwhile,
    only_member,
    progress,
    remove_member,
    stop_all,
)
from tests.compat.transactions.processes import Program, commands

# More of everything: KBROKER_COMPAT_KILLS=50 kills the broker fifty times, and programs as often.
KILLS = int(os.environ.get("KBROKER_COMPAT_KILLS", "2"))
SETTINGS = {**PROMPT, "group.min.session.timeout.ms": "500", "transaction.state.log.num.partitions": "5"}
SESSION_TIMEOUT_MS = 6000 if OUTSIDE else 2000
STAGES = ("sent", "produced", "offsets")
# What was done and not answered when the broker dies.
UNANSWERED = (
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.PRODUCE,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
)
CLIENTS = ("confluent_kafka", "kafka_python", "kafka_tools")
SEED = int(os.environ.get("KBROKER_COMPAT_SEED", "1"))


class Views(NamedTuple):
    """A topic's values by partition."""

    committed: list[list[bytes]]
    uncommitted: list[list[bytes]]


class Result(NamedTuple):
    source: list[list[bytes]]
    targets: dict[str, Views]
    restarted: dict[str, Views]  # the same after a clean restart and after kill -9
    repairs: list[str]  # after the clean one
    zombies: dict[str, list[str]]  # by client, the last lines of a program that committed what was others' by then
    flows: dict[str, Flow]


class Campaign:
    """What is done to the programs and to the broker while they work."""

    def __init__(self, flows: list[Flow], bootstrap: str, broker: BrokerProcess | None, line: Line | None) -> None:
        self.report: list[str] = []
        self.zombies: dict[str, list[str]] = {}
        self._bootstrap = bootstrap
        self._flows = flows
        self._broker = broker
        self._line = line
        self._random = random.Random(SEED)
        self._pause = threading.Event()
        self._last = time.monotonic()

    def run(self) -> None:
        progress(self._flows)
        self._done("every program works")
        for number in range(KILLS):
            self.kill_programs(STAGES[number % len(STAGES)], number % 2)
            if self._broker is not None and self._line is not None:
                self.kill_with_answers(self._broker, self._line, UNANSWERED[number % len(UNANSWERED)])
                if number % 2:
                    self.kill_at_random(self._broker)
        for stage in STAGES[1:] if KILLS > 10 else STAGES[1:2]:
            self.freeze_programs(stage)
            self.remove_members(stage)

    def _done(self, what: str) -> None:
        now = time.monotonic()
        self.report.append(f"{now - self._last:4.1f} s: {what}")
        self._last = now

    def kill_programs(self, stage: str, number: int) -> None:
        for program in stop_all(self._flows, stage, number):
            program.kill()
            program.start()
        progress(self._flows)
        self._done(f"programs {number} killed at {stage!r}")

    def kill_with_answers(self, broker: BrokerProcess, line: Line, api: ApiKey) -> None:
        """The broker has done what it is asked, and nobody knows."""
        line.hold(api)
        try:
            if api == ApiKey.INIT_PRODUCER_ID:
                for flow in self._flows:
                    flow.programs[0].kill()
                    flow.programs[0].start()
            programs = [program for flow in self._flows for program in flow.programs]
            meanwhile(
                self._flows,
                lambda: line.held(api) >= len(self._flows),
                f"held answers to {api.name}",
                lambda: (line.held(api), commits(programs)),
            )
            held = line.held(api)
            broker.kill()
            eventually(lambda: not line.connections(), "the end of the dead broker's connections", interval=0.001)
        finally:
            line.release()
        line.take_lost()
        broker.start()
        progress(self._flows)
        self._done(f"broker killed with {held} answers to {api.name} held back")

    def kill_at_random(self, broker: BrokerProcess) -> None:
        self._pause.wait(self._random.random() / 5)
        broker.restart()
        progress(self._flows)
        self._done("broker killed at a random moment")

    def freeze_programs(self, stage: str) -> None:
        """Programs that sleep until others have got their partitions, and then go on where they were: with offsets that
        are others' now, or after the coordinator has aborted their transaction."""
        stopped = stop_all(self._flows, stage, 1)
        failed = [program.failures() for program in stopped]
        for program in stopped:
            program.freeze()
        only_member(self._bootstrap, self._flows, 0)
        progress(self._flows, by=5, programs=[0])
        for program in stopped:
            program.thaw()
        self._wake(stopped, failed)
        self._done(f"programs 1 frozen at {stage!r} for longer than their session")

    def remove_members(self, stage: str) -> None:
        """Programs that are removed from their groups and learn of it before they commit, by their heartbeats."""
        stopped = stop_all(self._flows, stage, 1)
        failed = [program.failures() for program in stopped]
        for flow in self._flows:
            remove_member(self._bootstrap, flow.group, flow.programs[1].client_id)
        progress(self._flows, by=5, programs=[0])
        self._wake(stopped, failed)
        self._done(f"programs 1 removed from their groups at {stage!r}")

    def _wake(self, stopped: list[Program], failed: list[int]) -> None:
        """What they have begun must not be committed. `failed`: how often each had failed before."""
        for program in stopped:
            program.go_on()
        progress(self._flows)
        for flow, program, before in zip(self._flows, stopped, failed, strict=True):
            if program.failures() == before:
                self.zombies[flow.client] = program.lines()[-10:]


@pytest.fixture(scope="module")
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    directory = tmp_path_factory.mktemp("flows")
    with ExitStack() as stack:
        broker = line = None
        bootstrap = OUTSIDE
        if not OUTSIDE:
            line = Line()
            stack.callback(line.close)
            broker = stack.enter_context(running_broker(directory, SETTINGS, advertise=line.address))
            line.lead_to(broker.bootstrap)
            bootstrap = line.address
        source = Source(bootstrap)
        flows = [
            Flow(client, command, bootstrap, source.topic, directory, SESSION_TIMEOUT_MS)
            for client, command in commands(directory).items()
        ]
        for flow in flows:
            stack.callback(flow.kill)
        campaign = Campaign(flows, bootstrap, broker, line)
        yield carried_out(campaign, source, flows, bootstrap, broker, stack)
        lines = reports(request.config).section(REPORT)
        lines += [*campaign.report, *(flow.report() for flow in flows)]


def carried_out(
    campaign: Campaign,
    source: Source,
    flows: list[Flow],
    bootstrap: str,
    broker: BrokerProcess | None,
    stack: ExitStack,
) -> Result:
    create(bootstrap, [source.topic, *(flow.target for flow in flows)], {"segment.bytes": str(1 << 20)})
    source.start(flows)
    stack.callback(source.abandon)
    for flow in flows:
        flow.start()
    campaign.run()
    source.stop()
    drained(flows, bootstrap, source)
    for flow in flows:
        flow.kill()
    found = views(bootstrap, flows)
    by_client = {flow.client: flow for flow in flows}
    if broker is None:
        return Result(source.written, found, found, [], campaign.zombies, by_client)
    broker.stop()
    broker.start()
    repairs = repaired(broker)
    broker.restart()
    return Result(source.written, found, views(bootstrap, flows), repairs, campaign.zombies, by_client)


def views(bootstrap: str, flows: list[Flow]) -> dict[str, Views]:
    client = ConfluentClient(bootstrap)
    try:
        for flow in flows:
            for partition in range(PARTITIONS):
                ends = partial(client.end, flow.target, partition=partition)
                eventually(
                    lambda ends=ends: ends(COMMITTED) == ends(UNCOMMITTED), "the end of every transaction", DEADLINE_S
                )
        return {
            flow.client: Views(*(client.read(flow.target, level, PARTITIONS) for level in (COMMITTED, UNCOMMITTED)))
            for flow in flows
        }
    finally:
        client.close()


def difference(flow: Flow, partition: int, wanted: list[bytes], found: list[bytes]) -> str:
    """Say which inputs of a partition have not exactly one result, and what the programs did with the first."""
    counts = Counter(found)
    wrong = [offset for offset, value in enumerate(wanted) if counts[value] != 1]
    if not wrong:
        return f"partition {partition}: each input has one result, in another order" if wanted != found else ""
    story = flow.story(partition, wrong[0])
    return "\n".join([f"partition {partition}: {len(wrong)} inputs from {wrong[0]} to {wrong[-1]}", *story])


# The limit is for a test that hangs: each wait has its own, and the slower the machine, the longer all of it takes.
@pytest.mark.timeout(1800 + 300 * KILLS)
@pytest.mark.feature("exactly once, kill -9")
@pytest.mark.parametrize("client", [pytest.param(name, marks=pytest.mark.client(name)) for name in CLIENTS])
def test_every_input_is_processed_exactly_once(result, client):
    if client not in result.targets:
        pytest.skip("not run: needs Java 17 or newer, and Maven")
    views, flow = result.targets[client], result.flows[client]
    for partition, values in enumerate(result.source):
        wanted = [b"done " + value for value in values]
        assert difference(flow, partition, wanted, views.committed[partition]) == ""
    assert client not in result.zombies, "a transaction was committed after its program had lost its partitions"
    dropped = sum(map(len, views.uncommitted)) - sum(map(len, views.committed))
    assert dropped > 0, "no transaction was aborted, so nothing was tried"
    assert result.restarted == result.targets
    assert result.repairs == []

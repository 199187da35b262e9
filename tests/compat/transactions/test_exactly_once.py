"""Exactly-once processing: consume-transform-produce programs of three clients, killed and frozen with their broker.

Each client runs two programs, which commit the offsets of their inputs in the transaction. One campaign runs all
clients at the same time, then each client's result is a test. A broker that the suite has started is killed too: at
random moments, and when it has executed requests whose responses no client has received.
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
from tests.compat.crash.killer import repaired_logs
from tests.compat.crash.proxy import Proxy
from tests.compat.reports import reports
from tests.compat.support import EXTERNAL_BOOTSTRAP, BrokerProcess, eventually, running_broker
from tests.compat.transactions.clients import COMMITTED, UNCOMMITTED
from tests.compat.transactions.confluent_client import ConfluentClient
from tests.compat.transactions.conftest import PROMPT_TIMEOUTS, REPORT
from tests.compat.transactions.flows import (
    INTERVAL_S,
    PARTITIONS,
    Flow,
    Source,
    commits,
    create_topics,
    remove_member,
    stop_programs,
    wait_for_commits,
    wait_for_only_member,
    wait_until_drained,
    wait_while_running,
)
from tests.compat.transactions.processes import Program, program_commands
from tests.sampling import runs_in_third

# KBROKER_COMPAT_KILLS=50 kills the broker and the programs fifty times.
KILLS = int(os.environ.get("KBROKER_COMPAT_KILLS", "1"))
SETTINGS = {**PROMPT_TIMEOUTS, "group.min.session.timeout.ms": "500", "transaction.state.log.num.partitions": "5"}
SESSION_TIMEOUT_MS = 6000 if EXTERNAL_BOOTSTRAP else 2000
STAGES = ("sent", "produced", "offsets")
# The API whose requests are executed, with the responses held, when the broker is killed.
HELD_APIS = (
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
    restarted: dict[str, Views]  # after a clean restart and a kill -9
    repairs: list[str]  # after the clean restart
    zombies: dict[str, list[str]]  # by client, the last lines of a program that committed inputs of another member
    flows: dict[str, Flow]


class Campaign:
    """Kills and freezes programs, and kills the broker, while they run."""

    def __init__(self, flows: list[Flow], bootstrap: str, broker: BrokerProcess | None, proxy: Proxy | None) -> None:
        self.report: list[str] = []
        self.zombies: dict[str, list[str]] = {}
        self._bootstrap = bootstrap
        self._flows = flows
        self._broker = broker
        self._proxy = proxy
        self._random = random.Random(SEED)
        self._pause = threading.Event()
        self._last = time.monotonic()

    def run(self) -> None:
        wait_for_commits(self._flows)
        self._report("every program has committed")
        for number in range(KILLS):
            self.kill_programs(STAGES[number % len(STAGES)], number % 2)
            if self._broker is not None and self._proxy is not None:
                self.kill_with_held_responses(self._broker, self._proxy, HELD_APIS[number % len(HELD_APIS)])
                if number % 2 or KILLS == 1:
                    self.kill_at_random(self._broker)
        for stage in STAGES[1:] if KILLS > 10 else STAGES[1:2]:
            self.freeze_programs(stage)
            self.remove_members(stage)

    def _report(self, event: str) -> None:
        now = time.monotonic()
        self.report.append(f"{now - self._last:4.1f} s: {event}")
        self._last = now

    def kill_programs(self, stage: str, number: int) -> None:
        for program in stop_programs(self._flows, stage, number):
            program.kill()
            program.start()
        wait_for_commits(self._flows)
        self._report(f"programs {number} killed at {stage!r}")

    def kill_with_held_responses(self, broker: BrokerProcess, proxy: Proxy, api: ApiKey) -> None:
        """Kill the broker when it has executed requests of this API, but no client has received the responses."""
        proxy.hold_responses(api)
        try:
            if api == ApiKey.INIT_PRODUCER_ID:
                for flow in self._flows:
                    flow.programs[0].kill()
                    flow.programs[0].start()
            programs = [program for flow in self._flows for program in flow.programs]
            wait_while_running(
                self._flows,
                lambda: proxy.held(api) >= len(self._flows),
                f"held responses to {api.name}",
                lambda: (proxy.held(api), commits(programs)),
            )
            held = proxy.held(api)
            broker.kill()
            eventually(lambda: not proxy.connections(), "the end of the dead broker's connections", interval=0.001)
        finally:
            proxy.release_responses()
        proxy.take_lost_requests()
        broker.start()
        wait_for_commits(self._flows)
        self._report(f"broker killed with {held} responses to {api.name} held")

    def kill_at_random(self, broker: BrokerProcess) -> None:
        self._pause.wait(self._random.uniform(0.0, INTERVAL_S))
        broker.restart()
        wait_for_commits(self._flows)
        self._report("broker killed at a random moment")

    def freeze_programs(self, stage: str) -> None:
        """Freeze programs until other members have their partitions. They continue a transaction whose inputs belong to
        other members, or that the coordinator has aborted."""
        stopped = stop_programs(self._flows, stage, 1)
        failures = [program.failures() for program in stopped]
        for program in stopped:
            program.freeze()
        wait_for_only_member(self._bootstrap, self._flows, 0)
        wait_for_commits(self._flows, count=5, programs=[0])
        for program in stopped:
            program.thaw()
        self._resume(stopped, failures)
        self._report(f"programs 1 frozen at {stage!r} for longer than their session")

    def remove_members(self, stage: str) -> None:
        """Remove programs from their groups. Their heartbeats fail before they commit."""
        stopped = stop_programs(self._flows, stage, 1)
        failures = [program.failures() for program in stopped]
        for flow in self._flows:
            remove_member(self._bootstrap, flow.group, flow.programs[1].client_id)
        wait_for_commits(self._flows, count=5, programs=[0])
        self._resume(stopped, failures)
        self._report(f"programs 1 removed from their groups at {stage!r}")

    def _resume(self, stopped: list[Program], failures: list[int]) -> None:
        """Resume programs, whose open transactions must fail. `failures`: how many each program had before."""
        for program in stopped:
            program.resume()
        wait_for_commits(self._flows)
        for flow, program, before in zip(self._flows, stopped, failures, strict=True):
            if program.failures() == before:
                self.zombies[flow.client] = program.lines()[-10:]


@pytest.fixture(scope="module")
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    directory = tmp_path_factory.mktemp("flows")
    with ExitStack() as stack:
        broker = proxy = None
        bootstrap = EXTERNAL_BOOTSTRAP
        if not EXTERNAL_BOOTSTRAP:
            proxy = Proxy()
            stack.callback(proxy.close)
            broker = stack.enter_context(running_broker(directory, SETTINGS, advertise=proxy.address))
            proxy.forward_to(broker.bootstrap)
            bootstrap = proxy.address
        source = Source(bootstrap)
        flows = [
            Flow(client, command, bootstrap, source.topic, directory, SESSION_TIMEOUT_MS)
            for client, command in program_commands().items()
        ]
        for flow in flows:
            stack.callback(flow.kill)
        campaign = Campaign(flows, bootstrap, broker, proxy)
        yield run_campaign(campaign, source, flows, bootstrap, broker, stack)
        lines = reports(request.config).section(REPORT)
        lines += [*campaign.report, *(flow.report() for flow in flows)]


def run_campaign(
    campaign: Campaign,
    source: Source,
    flows: list[Flow],
    bootstrap: str,
    broker: BrokerProcess | None,
    stack: ExitStack,
) -> Result:
    create_topics(bootstrap, [source.topic, *(flow.target for flow in flows)], {"segment.bytes": str(1 << 20)})
    source.start(flows)
    stack.callback(source.abandon)
    for flow in flows:
        flow.start()
    campaign.run()
    source.stop()
    wait_until_drained(flows, bootstrap, source)
    for flow in flows:
        flow.kill()
    actual = views(bootstrap, flows)
    by_client = {flow.client: flow for flow in flows}
    if broker is None:
        return Result(source.written, actual, actual, [], campaign.zombies, by_client)
    broker.stop()
    broker.start()
    repairs = repaired_logs(broker)
    broker.restart()
    return Result(source.written, actual, views(bootstrap, flows), repairs, campaign.zombies, by_client)


def views(bootstrap: str, flows: list[Flow]) -> dict[str, Views]:
    client = ConfluentClient(bootstrap)
    try:
        for flow in flows:
            for partition in range(PARTITIONS):
                ends = partial(client.end, flow.target, partition=partition)
                eventually(lambda ends=ends: ends(COMMITTED) == ends(UNCOMMITTED), "the end of every transaction")
        return {
            flow.client: Views(*(client.read(flow.target, level, PARTITIONS) for level in (COMMITTED, UNCOMMITTED)))
            for flow in flows
        }
    finally:
        client.close()


def difference(flow: Flow, partition: int, expected: list[bytes], actual: list[bytes]) -> str:
    """Return which inputs of a partition do not have exactly one result, with the transactions of the first."""
    counts = Counter(actual)
    wrong = [offset for offset, value in enumerate(expected) if counts[value] != 1]
    if not wrong:
        return f"partition {partition}: each input has one result, in another order" if expected != actual else ""
    history = flow.history(partition, wrong[0])
    return "\n".join([f"partition {partition}: {len(wrong)} inputs from {wrong[0]} to {wrong[-1]}", *history])


# The limit is for a test that hangs: every wait has its own, and a slow machine takes longer for all of them.
@runs_in_third(1)
@pytest.mark.timeout(1800 + 300 * KILLS)
@pytest.mark.feature("exactly once, kill -9")
@pytest.mark.parametrize("client", [pytest.param(name, marks=pytest.mark.client(name)) for name in CLIENTS])
def test_every_input_is_processed_exactly_once(result, client):
    if client not in result.targets:
        pytest.skip("not run: needs Java 17 or newer, and Maven")
    views, flow = result.targets[client], result.flows[client]
    for partition, values in enumerate(result.source):
        expected = [b"done " + value for value in values]
        assert difference(flow, partition, expected, views.committed[partition]) == ""
    assert client not in result.zombies, "a transaction was committed after its program had lost its partitions"
    dropped = sum(map(len, views.uncommitted)) - sum(map(len, views.committed))
    assert dropped > 0, "no transaction was aborted, so the test proves nothing"
    assert result.restarted == result.targets
    assert result.repairs == []

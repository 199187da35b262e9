"""Consume, transform, produce with two clients while brokers are killed: each input has exactly one result."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.views import TRANSACTION
from tests.compat.reports import reports
from tests.compat.transactions.flows import Flow, Source, create_topics, wait_for_commits, wait_until_drained
from tests.compat.transactions.processes import program_commands
from tests.compat.transactions.test_exactly_once import difference, views

SESSION_TIMEOUT_MS = 6000
CLIENTS = ("confluent_kafka", "kafka_python")


@pytest.fixture
def flows(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[Source, list[Flow]]]:
    """A source that writes, and the running programs of each client, which have committed transactions."""
    bootstrap = cluster.bootstrap
    source, commands = Source(bootstrap), program_commands()
    flows = [
        Flow(client, commands[client], bootstrap, source.topic, tmp_path, SESSION_TIMEOUT_MS) for client in CLIENTS
    ]
    with ExitStack() as stack:
        stack.callback(source.abandon)
        for flow in flows:
            stack.callback(flow.kill)
        create_topics(bootstrap, [source.topic, *(flow.target for flow in flows)], replication_factor=3)
        source.start(flows)
        for flow in flows:
            flow.start()
        wait_for_commits(flows)
        yield source, flows


def test_every_input_is_processed_exactly_once_over_kills(
    cluster: Cluster, flows: tuple[Source, list[Flow]], request: pytest.FixtureRequest
) -> None:
    source, programs = flows
    transactional_id = programs[0].programs[0].client_id
    # The coordinator of a transaction, then the controller, then the leader of a partition that the programs write.
    roles = (
        lambda: cluster.coordinator(transactional_id, TRANSACTION),
        cluster.controller,
        lambda: cluster.leader(programs[1].target),
    )
    for choose in roles:
        killed = choose()
        cluster.kill(killed)
        wait_for_commits(programs)
        cluster.start(killed)
        cluster.wait_until_healthy()
        wait_for_commits(programs)
    source.stop()
    wait_until_drained(programs, cluster.bootstrap, source)
    for flow in programs:
        flow.kill()
    results = views(cluster.bootstrap, programs)
    for flow in programs:
        for partition, values in enumerate(source.written):
            expected = [b"done " + value for value in values]
            assert difference(flow, partition, expected, results[flow.client].committed[partition]) == ""
    reports(request.config).section("transactions over kills of brokers").extend(flow.report() for flow in programs)

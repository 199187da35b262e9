"""Brokers are restarted and killed under unchanged clients: none shows its user an error, and nothing is lost.

The clients have their default settings (see programs/lines.py), and all work at the same time. `KBROKER_COMPAT_BROKERS`
is the number of brokers, and `KBROKER_COMPAT_KILLS` how many are killed: a leader, a coordinator, a controller, ....
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.failover.running_clients import PARTITIONS, Client, Clients
from tests.compat.cluster.views import GROUP
from tests.compat.crash.checks import TopicRecords, read_topics
from tests.compat.reports import reports
from tests.compat.spark.helpers import Streams, load
from tests.compat.support import DEADLINE_S, eventually, unique
from tests.sampling import runs_in_third

KILLS = int(os.environ.get("KBROKER_COMPAT_KILLS", "2"))
# Only a test that hangs may reach it: seconds.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600 + 200 * KILLS)]
REPLICAS = 3


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    clients = Clients(tmp_path)
    yield clients
    clients.kill()


@pytest.fixture
def streams(spark: Any, tmp_path: Path) -> Iterator[Streams]:
    streams = Streams(spark, tmp_path)
    yield streams
    streams.stop()


def create_topics(cluster: Cluster, topics: list[str]) -> None:
    """Create topics whose replicas the controller places, each in another rack."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, REPLICAS) for topic in topics]).values():
        created.result(DEADLINE_S)
    cluster.wait_until_healthy()
    (view, *_) = filter(None, cluster.views().values())
    for part in view.partitions.values():
        assert len({cluster.rack(node_id) for node_id in part.replicas}) == REPLICAS


class Copy:
    """A streaming query that copies a topic, which a client writes, to another topic, each record at least once."""

    def __init__(self, streams: Streams, bootstrap: str, source: str) -> None:
        self.topic = unique("copy")
        self._streams = streams
        self._bootstrap = bootstrap
        self._source = source

    def start(self) -> None:
        frame = load(self._streams.spark.readStream, self._bootstrap, self._source, startingOffsets="earliest")
        self._query = self._streams.to_topic(
            frame.select("value", "partition"), self._bootstrap, self.topic, processingTime="1 second"
        )

    def rows(self) -> int:
        """Return the number of rows that the query has copied. Fails if the query has failed."""
        assert self._query.isActive, f"the query ended: {self._query.exception()}"
        return sum(progress["numInputRows"] for progress in self._query.recentProgress)

    def wait_for(self, count: int) -> None:
        eventually(lambda: self.rows() >= count, f"{count} rows of the query", interval=0.2, progress=self.rows)


@runs_in_third(2)
def test_clients_notice_restarts_and_kills_as_pauses(
    cluster: Cluster, clients: Clients, streams: Streams, request: pytest.FixtureRequest
) -> None:
    written = clients.all[0].topic
    copy = Copy(streams, cluster.bootstrap, written)
    create_topics(cluster, [*clients.topics, copy.topic])
    clients.start(cluster.bootstrap)
    copy.start()
    clients.wait_for_more()
    copy.wait_for(1)
    for node_id in cluster.brokers:
        cluster.stop(node_id)
        cluster.start(node_id)
        cluster.wait_until_healthy()
        clients.refresh()
    clients.wait_for_more()
    copy.wait_for(copy.rows() + 1)
    for number in range(KILLS):
        killed = broker_to_kill(cluster, clients, number)
        cluster.kill(killed)
        clients.wait_for_more()
        copy.wait_for(copy.rows() + 1)
        cluster.start(killed)
        cluster.wait_until_healthy()
    clients.stop()
    stored = read_topics(cluster.bootstrap, dict.fromkeys(clients.topics, PARTITIONS))
    clients.wait_until_read({topic: [len(part) for part in stored[topic]] for topic in clients.topics})
    copy.wait_for(clients.all[0].sent[written])
    streams.stop()
    for client in clients.all:
        check(client, stored)
        check_committed(cluster, client, stored)
    copied = read_topics(cluster.bootstrap, {copy.topic: PARTITIONS})[copy.topic]
    assert sorted({int(value) for part in copied for _, _, value in part}) == list(range(clients.all[0].sent[written]))
    reports(request.config).section("failover of unchanged clients").extend(summary(c, stored) for c in clients.all)


def broker_to_kill(cluster: Cluster, clients: Clients, number: int) -> int:
    """Return the leader of a partition, the coordinator of a group, or the controller, of each client in turn."""
    role, client = number % 3, clients.all[number // 3 % len(clients.all)]
    match role:
        case 0:
            return cluster.leader(client.topic)
        case 1:
            return cluster.coordinator(client.group, GROUP)
        case _:
            return cluster.controller()


def check(client: Client, stored: dict[str, TopicRecords]) -> None:
    for topic in client.topics:
        numbers = {
            (partition, offset): int(value) for partition, part in enumerate(stored[topic]) for offset, _, value in part
        }
        assert client.read[topic] == numbers, f"what {client.kind.name} has read is not what is stored"
        if topic == client.topic or client.kind.default_acks_all:
            for number, place in client.acknowledged[topic].items():
                assert numbers.get(place) == number, f"{client.kind.name}: {number} at {place} is lost"
    for partition, part in enumerate(stored[client.topic]):
        expected = list(range(partition, client.sent[client.topic], PARTITIONS))
        assert [int(value) for _, _, value in part] == expected, f"{client.kind.name}: each record once, in order"


def check_committed(cluster: Cluster, client: Client, stored: dict[str, TopicRecords]) -> None:
    """Check the offsets that the consumer has committed at its end."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    request = ConsumerGroupTopicPartitions(client.group)
    found = admin.list_consumer_group_offsets([request])[client.group].result(DEADLINE_S).topic_partitions
    committed = {(tp.topic, tp.partition): tp.offset for tp in found}
    ends = {(topic, index): len(part) for topic in client.topics for index, part in enumerate(stored[topic])}
    assert committed == ends, f"{client.kind.name}: committed offsets"


def summary(client: Client, stored: dict[str, TopicRecords]) -> str:
    parts = []
    for topic in client.topics:
        values = [value for part in stored[topic] for _, _, value in part]
        duplicates, lost = len(values) - len(set(values)), client.sent[topic] - len(set(values))
        kind = "idempotent" if topic == client.topic else "default settings"
        parts.append(f"{kind}: {client.sent[topic]} records, {duplicates} stored twice, {lost} lost")
    return f"{client.kind.name}: {'; '.join(parts)}; {client.commits} commits, no error"

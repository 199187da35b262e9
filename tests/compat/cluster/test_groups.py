"""Consumer groups whose coordinator is killed: committed offsets stay, members continue, every record is read."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka.errors import KafkaConnectionError

from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.views import GROUP
from tests.compat.cluster.work import create_topic, working
from tests.compat.kafka_python.helpers import Member
from tests.compat.support import eventually, unique

PARTITIONS = 2


def groups_of_one_broker(cluster: Cluster) -> tuple[int, tuple[str, str]]:
    """Return a broker that is not the controller, and two new groups that it coordinates."""
    controller = cluster.controller()
    groups: dict[int, str] = {}

    def found() -> tuple[int, tuple[str, str]] | None:
        group = unique("group")
        coordinator = cluster.coordinator(group, GROUP)
        if coordinator in groups and coordinator != controller:
            return coordinator, (groups[coordinator], group)
        groups[coordinator] = group
        return None

    return eventually(found, "two groups of a broker that is not the controller")


class ConfluentMember:
    """A consumer that the test polls."""

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        self.values: set[bytes] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "auto.commit.interval.ms": 100,
                "topic.metadata.refresh.interval.ms": 1000,
                "socket.timeout.ms": 6000,
                "log_level": 2,
            }
        )
        self._consumer.subscribe([topic])

    def poll(self) -> int:
        for message in self._consumer.consume(500, timeout=0.1):
            if not message.error():
                self.values.add(message.value())
        return len(self.values)

    def committed(self, topic: str) -> list[int]:
        try:
            found = self._consumer.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], 5)
        except KafkaException:
            return []
        return [tp.offset for tp in found]

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def members(cluster: Cluster, topic: str, groups: tuple[str, str]) -> Iterator[tuple[ConfluentMember, Member]]:
    """A member of each client, the only one of its group."""
    confluent = ConfluentMember(cluster, groups[0], topic)
    python = Member(
        KafkaConsumer(
            topic,
            bootstrap_servers=cluster.bootstrap.split(","),
            group_id=groups[1],
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
            auto_commit_interval_ms=100,
            metadata_max_age_ms=1000,
            request_timeout_ms=10_000,
        ),
        # A poll raises ECONNREFUSED if the coordinator stops while the client joins the group.
        continues_after=(KafkaConnectionError,),
    )
    try:
        yield confluent, python
    finally:
        confluent.close()
        python.leave()


def test_groups_continue_when_their_coordinator_is_killed(cluster: Cluster) -> None:
    killed, groups = groups_of_one_broker(cluster)
    others = cluster.others(killed)
    topic = create_topic(cluster, [[*others, killed], [*reversed(others), killed]])
    with working(cluster, topic, PARTITIONS) as work, members(cluster, topic, groups) as (confluent, python):
        eventually(lambda: confluent.poll() > 100 and len(python.records) > 100, "both groups read")
        eventually(lambda: confluent.poll() and min(confluent.committed(topic), default=0) > 0, "commits")
        committed = confluent.committed(topic)
        cluster.kill(killed)
        work.wait_for_more()
        assert all(cluster.coordinator(group, GROUP) != killed for group in groups)
        after = eventually(lambda: confluent.committed(topic), "offsets from the new coordinator")
        assert all(now >= before for now, before in zip(after, committed, strict=True)), "no commit is lost"
        cluster.start(killed)
        work.wait_for_more()
        work.stop()
        ends = [sum(producer.ledger.sent[index] for producer in work.producers) for index in range(PARTITIONS)]
        eventually(
            lambda: confluent.poll() >= sum(ends) and len(values_of(python)) >= sum(ends),
            f"{sum(ends)} records in both groups",
            interval=0,
            progress=lambda: (len(confluent.values), len(python.records)),
        )
        assert confluent.values == values_of(python)
        eventually(lambda: confluent.poll() and confluent.committed(topic) == ends, "the ends are committed")


def values_of(member: Member) -> set[bytes]:
    if member.error is not None:
        raise member.error
    return {record.value for record in member.records}

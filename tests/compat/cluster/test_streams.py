"""Kafka Streams (KIP-1071) with three brokers: their internal topics, and kills of the group's coordinator."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.cluster.cluster import Cluster, running_cluster
from tests.compat.cluster.views import GROUP
from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.streams.application import EXACTLY_ONCE, SETTINGS, TASKS, Instance, Words, application_command
from tests.compat.support import eventually, unique
from tests.sampling import runs_in_third


@pytest.fixture
def streams_cluster(tmp_path: Path) -> Iterator[Cluster]:
    # No instance dies here. One whose session ends on a busy machine may fail with UnknownMemberIdException.
    configs = {**SETTINGS, "group.streams.session.timeout.ms": "30000"}
    settings = {name.replace(".", "_"): value for name, value in configs.items()}
    with running_cluster(tmp_path / "cluster", servers=1, **settings) as own:
        yield own


@runs_in_third(0)
def test_words_are_counted_once_while_coordinators_are_killed(
    jvm: Jvm, streams_cluster: Cluster, tmp_path: Path
) -> None:
    cluster, application = streams_cluster, unique("streams")
    at = ("--bootstrap-server", cluster.bootstrap)
    for name in ("words", "counts"):
        topic = ("--topic", f"{application}-{name}", "--partitions", "3")
        jvm.check("kafka-topics", *at, "--create", *topic)
    words = Words(cluster.bootstrap, application)
    command = application_command()
    instances = [
        Instance(command, cluster.bootstrap, application, "count", tmp_path / name, EXACTLY_ONCE)
        for name in ("first", "second")
    ]
    try:
        for instance in instances:
            instance.start()
        words.write(20)
        words.wait()
        for topic in ("by-word-repartition", "counts-changelog"):
            described = jvm.check("kafka-topics", *at, "--describe", "--topic", f"{application}-{topic}").out
            assert "PartitionCount: 3\tReplicationFactor: 3" in described
        for _ in range(2):
            words.write(20)
            victim = cluster.coordinator(application, GROUP)
            cluster.kill(victim)
            words.write(20)
            words.wait()
            cluster.restore()
        eventually(
            lambda: sorted(task for instance in instances for task in instance.tasks()[0]) == sorted(TASKS),
            "each task is active once",
            interval=0.2,
        )
    finally:
        for instance in instances:
            instance.kill()
        words.close()

"""Plans of moves, as the command line makes them and the controller runs them, while clients work."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.compat.cluster.cluster import IS_KBROKER, Cluster, running_cluster
from tests.compat.cluster.growth.plan_commands import json_of, process, replicas, run, targets
from tests.compat.cluster.test_groups import PARTITIONS, ConfluentMember
from tests.compat.cluster.work import create_topic, working
from tests.compat.support import DEADLINE_S, eventually, unique

pytestmark = pytest.mark.skipif(not IS_KBROKER, reason="not run: another program's brokers")

# Bytes of each partition before it moves, and a rate with which that takes seconds.
PARTITION_BYTES, RATE, SLOW_RATE = 2_000_000, "400k", "50k"


# Partitions have two replicas, so that one broker of three can be drained.
TWO_REPLICAS = {
    "offsets_topic_replication_factor": "2", "default_replication_factor": "2", "min_insync_replicas": "1"
}  # fmt: skip


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for the tests of this module, each of which leaves all brokers running."""
    with running_cluster(tmp_path_factory.mktemp("pairs"), servers=1, **TWO_REPLICAS) as cluster:
        yield cluster


def fill(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    for _ in range(PARTITION_BYTES // 10_000):
        for partition in range(PARTITIONS):
            producer.produce(topic, bytes(10_000), partition=partition)
    assert producer.flush(DEADLINE_S) == 0


def test_brokers_are_drained_and_balanced_while_clients_work(pairs: Cluster) -> None:
    topic = create_topic(pairs, [[1, 2], [3, 1]])
    large = create_topic(pairs, [[3, 2], [1, 3]])
    fill(pairs, large)
    with working(pairs, topic, PARTITIONS) as work:
        member = ConfluentMember(pairs, unique("group"), topic)
        eventually(lambda: member.poll() > 10, "the member reads")
        drained(pairs)
        work.wait_for_more()
        balanced_without_command_line_and_controller(pairs)
        work.wait_for_more()
        cancelled(pairs, large)
        read = member.poll()
        eventually(lambda: member.poll() > read + 10, "the member reads on")
        # It may have read one partition only, and commits what it has polled.
        eventually(
            lambda: member.poll() and all(offset > 0 for offset in member.committed(topic) or [0]), "the member commits"
        )
        member.close()
    last = json_of(pairs, "brokers", "plan")
    assert (last["plan"], last["state"]) == (3, "cancelled")


def drained(cluster: Cluster) -> None:
    """A command that waits for the end of its plan: the cluster becomes what was shown."""
    assert json.loads(run(cluster, "brokers", "plan", "--json")[0]) is None
    _, refusal = run(cluster, "brokers", "drain", "2", "3", status=1)
    assert "and only 1 broker(s) would accept replicas" in refusal
    document = json_of(cluster, "brokers", "drain", "3")
    run_of_plan = document["run"]
    assert (run_of_plan["state"], run_of_plan["done"]) == ("complete", len(document["moves"]))
    assert run_of_plan["copied_bytes"] == document["copied_bytes"] > PARTITION_BYTES
    found = replicas(cluster)
    assert targets(document).items() <= found.items()
    after = {broker["broker"]: broker["after"]["replicas"] for broker in document["brokers"]}
    assert after == {broker: sum(broker in ids for ids in found.values()) for broker in cluster.brokers}
    assert after[3] == 0
    assert "nothing to move" in run(cluster, "brokers", "drain", "3")[0]
    cordoned_until_undone(cluster)


def cordoned_until_undone(cluster: Cluster) -> None:
    """A drained broker gets no replicas of new topics and partitions, also after a restart, until that is undone."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    cluster.stop(3)
    cluster.start(3)
    cluster.wait_until_healthy()
    name = unique("cordoned")
    admin.create_topics([NewTopic(name, 6, 2)])[name].result(DEADLINE_S)
    admin.create_partitions([NewPartitions(name, 12)])[name].result(DEADLINE_S)
    cluster.wait_until(lambda view: sum(key[0] == name for key in view.partitions) == 12, f"12 partitions of {name}")
    assert {broker for key, ids in replicas(cluster).items() if key[0] == name for broker in ids} == {1, 2}
    shown = json_of(cluster, "brokers", "balance", "--dry-run")
    assert all(3 not in move["target"] for move in shown["moves"])
    assert run(cluster, "brokers", "drain", "3", "--undo")[0] == "broker 3: accepts replicas again\n"
    admin.delete_topics([name])[name].result(DEADLINE_S)
    cluster.wait_until(lambda view: all(key[0] != name for key in view.partitions), f"{name} is deleted")


def balanced_without_command_line_and_controller(cluster: Cluster) -> None:
    """The command line is killed, then the controller: the plan ends as if nothing had happened."""
    command = process(cluster, "brokers", "balance", "--throttle", RATE, "--yes")
    assert command.stderr is not None
    assert command.stderr.readline().startswith("plan 2 (balance) has begun")
    command.kill()
    command.communicate()
    _, refusal = run(cluster, "brokers", "drain", "3", status=1)
    assert refusal.startswith("kbroker: plan 2 (balance) is running")
    controller = cluster.controller()
    cluster.kill(controller)
    interrupted = process(cluster, "brokers", "plan", "--watch")
    cluster.start(controller)
    plan = json_of(cluster, "brokers", "plan", "--watch")
    assert "plan 2 (balance) is complete" in interrupted.communicate(timeout=DEADLINE_S)[0]
    assert (plan["state"], plan["skipped"]) == ("complete", 0)
    found = replicas(cluster)
    assert targets(plan).items() <= found.items()
    # Not that a second plan would be empty: the clients wrote meanwhile, to some partitions more than to others.
    stored = [sum(broker in ids for ids in found.values()) for broker in cluster.brokers]
    led = [sum(broker == ids[0] for ids in found.values()) for broker in cluster.brokers]
    assert max(stored) - min(stored) <= 1
    assert max(led) - min(led) <= 1


def cancelled(cluster: Cluster, topic: str) -> None:
    """A plan that is cancelled while it copies: every partition has the replicas of before."""
    before = replicas(cluster)
    run(cluster, "brokers", "drain", "1", "--throttle", SLOW_RATE, "--detach")
    eventually(lambda: json_of(cluster, "brokers", "plan")["copied_bytes"] > 0, "the plan copies", interval=0.5)
    assert json_of(cluster, "brokers", "plan")["state"] == "running"
    output, _ = run(cluster, "brokers", "plan", "--cancel")
    assert output.startswith("plan 3 (drain 1) is cancelled")
    assert replicas(cluster) == before
    assert "throttled" not in run(cluster, "configs", "get", "topic", topic)[0]
    assert "cordoned" not in run(cluster, "configs", "get", "broker", "1")[0]


def test_another_replication_factor(pairs: Cluster) -> None:
    topic = create_topic(pairs, [[1, 2], [3, 1]])
    output, _ = run(pairs, "topics", "alter", topic, "--replication-factor", "3", "--yes")
    assert output.splitlines()[-1].endswith("2 of 2 partitions moved")
    found = replicas(pairs)
    assert [sorted(found[topic, index]) for index in range(2)] == [[1, 2, 3], [1, 2, 3]]
    run(pairs, "topics", "alter", topic, "--replication-factor", "1", "--yes")
    assert [found[topic, index][:1] for index in range(2)] == [replicas(pairs)[topic, index] for index in range(2)]
    _, refusal = run(pairs, "topics", "alter", topic, "--replication-factor", "4", "--yes", status=1)
    assert "only 3 broker(s) accept replicas" in refusal


def test_a_broker_that_has_failed_is_replaced(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 4, servers=1, **TWO_REPLICAS) as cluster:
        topic = create_topic(cluster, [[3, 1], [2, 3]])
        with working(cluster, topic, PARTITIONS) as work:
            cluster.kill(3)
            work.wait_for_more()
            cluster.wait_until(lambda view: 3 not in view.brokers, "broker 3 is fenced")
            _, refusal = run(cluster, "brokers", "replace", "4", "3", "--yes", status=1)
            assert refusal == "kbroker: broker 3 accepts no replicas: it is fenced, cordoned or unknown\n"
            run(cluster, "brokers", "replace", "3", "4", "--yes")
            found = replicas(cluster)
            assert [found[topic, index] for index in range(PARTITIONS)] == [(4, 1), (2, 4)]
            # It comes back without replicas, and can be used again.
            cluster.start(3)
            shown = json_of(cluster, "brokers", "balance", "--dry-run")
            assert {broker for move in shown["moves"] for broker in set(move["target"]) - set(move["original"])} <= {3}

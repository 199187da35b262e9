"""`kbroker brokers list` with three brokers, one of which is killed."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.cli.cluster.cluster_state import read_layout
from kbroker.cli.common.client import admin_client
from kbroker.metadata.reassignments.placement.balance import balance
from kbroker.metadata.reassignments.placement.drain import change_replication_factor, drain
from kbroker.metadata.reassignments.placement.reassignment_plan import PlanRefused
from tests.compat.local_cluster.local_cluster import LocalCluster
from tests.compat.support import DEADLINE_S, eventually, unique

RECORDS, RECORD_BYTES = 100, 1000


def listed(cluster: LocalCluster, *options: str) -> str:
    command = ["brokers", "list", *options, "--bootstrap", ",".join(cluster.addresses)]
    return subprocess.check_output([sys.executable, "-m", "kbroker", *command], text=True)


def brokers(cluster: LocalCluster) -> dict[int, dict[str, Any]]:
    return {broker["broker"]: broker for broker in json.loads(listed(cluster, "--json"))}


def assert_plans_fit(cluster: LocalCluster, topic: str) -> None:
    """Plans begin with what the brokers report: replicas, sizes, free space."""
    with admin_client(",".join(cluster.addresses)) as client:
        layout = read_layout(client)
    assert all(broker.accepts_replicas and broker.free_bytes for broker in layout.brokers.values())
    assert all(part.is_movable and not part.out_of_sync for part in layout.partitions)
    assert sum(part.size_bytes for part in layout.partitions) > RECORDS * RECORD_BYTES
    plan = change_replication_factor(layout, [f"{topic}-single"], 3)
    assert [len(move.added) for move in plan.moves] == [2, 2, 2]
    assert balance(layout).moves == ()
    with pytest.raises(PlanRefused, match="only 2 broker"):
        drain(layout, [1])


def test_brokers_and_their_disk_use(cluster: LocalCluster) -> None:
    topic = unique("sizes")
    admin = AdminClient({"bootstrap.servers": cluster.addresses[0]})
    admin.create_topics([NewTopic(topic, 3, 3), NewTopic(f"{topic}-single", 3, 1)])[topic].result(DEADLINE_S)
    producer = Producer({"bootstrap.servers": ",".join(cluster.addresses), "log_level": 2})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number * RECORD_BYTES, partition=number % 3)
    assert producer.flush(DEADLINE_S) == 0
    eventually(cluster.is_healthy, "all replicas in sync")

    found = brokers(cluster)
    assert {number: broker["address"] for number, broker in found.items()} == dict(enumerate(cluster.addresses, 1))
    assert sorted(broker["state"] for broker in found.values()) == ["controller", "running", "running"]
    # Each broker has a replica of each partition of one topic, and one partition of the other.
    assert [broker["replica_count"] for broker in found.values()] == [4, 4, 4]
    assert sum(broker["leads"] for broker in found.values()) == 6
    assert [broker["in_sync"] for broker in found.values()] == [4, 4, 4]
    assert all(broker["size_bytes"] > RECORDS * RECORD_BYTES for broker in found.values())
    assert all(broker["free_bytes"] > 0 for broker in found.values())
    header, *rows = listed(cluster).splitlines()
    assert " ".join(header.split()) == "BROKER ADDRESS RACK STATE CORDONED LEADS REPLICAS OUT_OF_SYNC DISK_USE FREE"
    assert [row.split()[:2] for row in rows] == [[str(number), found[number]["address"]] for number in found]

    assert_plans_fit(cluster, topic)

    os.kill(cluster.broker_pids()[0], signal.SIGKILL)
    # Also the partition whose only replica is there has no in-sync replica: it is an eligible leader (KIP-966).
    eventually(lambda: brokers(cluster)[1]["in_sync"] == 0, "the killed broker left the in-sync replicas")
    killed = brokers(cluster)[1]
    assert (killed["state"], killed["leads"], killed["replica_count"]) == ("fenced", 0, 4)
    assert (killed["size_bytes"], killed["free_bytes"]) == (None, None)
    assert listed(cluster).splitlines()[1].split()[-2:] == ["?", "?"]

    command = ["configs", "list", "brokers", "--bootstrap", ",".join(cluster.addresses)]
    done = subprocess.run([sys.executable, "-m", "kbroker", *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1, "kbroker: broker 1 does not respond: what is set for it is not listed\n"
    )  # fmt: skip

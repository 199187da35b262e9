"""Brokers are upgraded one by one from a version that has classic groups only, under clients that do not change."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.cluster.cluster import IS_KBROKER, Cluster, running_cluster
from tests.compat.cluster.groups.groups import RunningGroup, ask, running_groups
from tests.compat.cluster.groups.kills import PARTITIONS, REPLICAS
from tests.compat.cluster.views import GROUP
from tests.compat.cluster.work import create_topic, working
from tests.compat.support import BrokerProcess, eventually

pytestmark = pytest.mark.skipif(not IS_KBROKER, reason="not run: another program's brokers")

FORMER = [sys.executable, "-m", "tests.compat.cluster.groups.former_broker"]
PRESENT = [sys.executable, "-m", "kbroker"]
UPGRADE, SAFE_DOWNGRADE = 1, 2
TRANSACTIONS = {"transaction.version": 2}
JOIN = {"member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
REQUESTS: list[tuple[str, int, dict[str, Any]]] = [
    ("ConsumerGroupHeartbeat", 1, {"group_id": "g", "rebalance_timeout": 60_000, "topic_partitions": [], **JOIN}),
    ("ConsumerGroupDescribe", 1, {"group_ids": ["g"]}),
    ("ShareGroupHeartbeat", 1, {"group_id": "g", **JOIN}),
    ("ShareGroupDescribe", 1, {"group_ids": ["g"]}),
    ("ShareFetch", 1, {"group_id": "g", "member_id": "m", "share_session_epoch": 0}),
    ("ShareAcknowledge", 1, {"group_id": "g", "member_id": "m", "share_session_epoch": 1}),
    ("DescribeShareGroupOffsets", 0, {"groups": [{"group_id": "g", "topics": None}]}),
    ("AlterShareGroupOffsets", 0, {"group_id": "g", "topics": []}),
    ("DeleteShareGroupOffsets", 0, {"group_id": "g", "topics": []}),
]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster of the version before."""
    start = BrokerProcess.launch

    def launch(broker: BrokerProcess) -> None:
        if not broker.starts:
            broker.program = FORMER
        start(broker)

    monkeypatch.setattr(BrokerProcess, "launch", launch)
    with running_cluster(tmp_path, servers=1) as cluster:
        yield cluster


def error_of(response: dict[str, Any] | None) -> str | None:
    if response is None:
        return None
    return str(response.get("error_code") or response["groups"][0]["error_code"])


def levels(broker: BrokerProcess) -> dict[str, int]:
    response = ask(broker, "ApiVersions", 4, client_software_name="test", client_software_version="1")
    assert response is not None
    return {row["name"]: row["max_version_level"] for row in response["finalized_features"]}


def update(cluster: Cluster, feature: str, level: int, upgrade_type: int = UPGRADE) -> str:
    row = {"feature": feature, "max_version_level": level, "upgrade_type": upgrade_type}
    response = ask(cluster.brokers[cluster.controller()], "UpdateFeatures", 1, timeout=30_000, feature_updates=[row])
    assert response is not None
    return str(response["error_code"])


def check_refusals(cluster: Cluster, upgraded: list[int]) -> None:
    for node_id, broker in cluster.brokers.items():
        assert levels(broker) == TRANSACTIONS
        errors = {error_of(ask(broker, *request[:2], **request[2])) for request in REQUESTS}
        assert errors == ({"UNSUPPORTED_VERSION"} if node_id in upgraded else {None})
    for feature in ("group.version", "share.version"):
        assert update(cluster, feature, 1) == "INVALID_UPDATE_VERSION"


def test_groups_of_new_kinds_wait_for_the_last_upgrade(cluster: Cluster) -> None:
    topic = create_topic(cluster, REPLICAS)
    controller = cluster.controller()
    # The first one that is upgraded becomes the controller if it is the controller that follows.
    first, second, last = [cluster.others(controller)[0], controller, cluster.others(controller)[1]]
    with (
        working(cluster, topic, PARTITIONS) as work,
        running_groups(cluster, topic, {"classic": 2}, PARTITIONS) as groups,
    ):
        [classic] = groups
        for count, node_id in enumerate((first, second, last)):
            check_refusals(cluster, [first, second][:count])
            cluster.stop(node_id)
            cluster.brokers[node_id].program = PRESENT
            cluster.start(node_id)
            cluster.wait_until_healthy()
            classic.wait_for_more()
            classic.check()
        assert levels(cluster.brokers[last]) == TRANSACTIONS
        for feature, level in (("group.version", 1), ("share.version", 2)):
            assert update(cluster, feature, level) == "NONE"
        with running_groups(cluster, topic, {"consumer": 1, "share": 1}, PARTITIONS) as more:
            groups += more
            check_former_broker(cluster, first, more)
            check_downgrade(cluster, more[0])
            work.stop()
            ends = [sum(producer.ledger.sent[index] for producer in work.producers) for index in range(PARTITIONS)]
            for group in groups:
                group.finish(ends)


def check_former_broker(cluster: Cluster, node_id: int, groups: list[RunningGroup]) -> None:
    """The broker is rolled back by mistake: it stays fenced, and coordinates no group that it would forget."""
    broker = cluster.brokers[node_id]
    cluster.stop(node_id)
    broker.program = FORMER
    cluster.launch(node_id)
    refusal = f"its version does not support features that the cluster uses broker={node_id} "
    others = [cluster.brokers[other] for other in cluster.others(node_id)]
    eventually(lambda: any(refusal in other.errors for other in others), "the controller keeps it fenced")
    for group in groups:
        group.wait_for_more()
        assert cluster.coordinator(group.name, GROUP) != node_id
    broker.end()
    broker.program = PRESENT
    cluster.start(node_id)
    cluster.wait_until_healthy()


def wait_for_description(broker: BrokerProcess, group: str, error: str) -> None:
    request = ("ConsumerGroupDescribe", 1)
    eventually(lambda: error_of(ask(broker, *request, group_ids=[group])) == error, f"{error} at {broker.bootstrap}")


def check_downgrade(cluster: Cluster, group: RunningGroup) -> None:
    """At level 0 the members get UNSUPPORTED_VERSION, which ends clients; their group and its offsets stay."""
    for member in group.members:
        member.kill()
    group.members.clear()
    before = group.committed()
    for level, upgrade_type in ((0, SAFE_DOWNGRADE), (1, UPGRADE)):
        assert update(cluster, "group.version", level, upgrade_type) == "NONE"
        coordinator = cluster.brokers[cluster.coordinator(group.name, GROUP)]
        wait_for_description(coordinator, group.name, "NONE" if level else "UNSUPPORTED_VERSION")
        assert group.committed() == before
    group.join()
    group.wait_for_more()

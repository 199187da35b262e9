"""A classic group becomes one of the newer protocol member by member, and back, while it reads and brokers die."""

from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.groups.groups import running_groups
from tests.compat.cluster.groups.kills import PARTITIONS, REPLICAS
from tests.compat.cluster.views import GROUP
from tests.compat.cluster.work import create_topic, working
from tests.compat.support import eventually

MEMBERS = 3


def test_a_group_is_converted_under_load_and_back(cluster: Cluster) -> None:
    topic = create_topic(cluster, REPLICAS)
    with (
        working(cluster, topic, PARTITIONS) as work,
        running_groups(cluster, topic, {"classic": MEMBERS}, PARTITIONS) as [group],
    ):
        for kind in ("consumer", "classic"):
            for index in range(MEMBERS):
                group.members.pop(0).leave()
                group.join(kind)
                if kind == "classic" and index == 1:
                    # Members of both protocols find the next coordinator.
                    killed = cluster.coordinator(group.name, GROUP)
                    cluster.kill(killed)
                    work.wait_for_more()
                    cluster.start(killed)
                eventually(lambda: group.is_shared, f"the {kind} member has its partition")
                group.wait_for_more()
                group.check()
            assert group.type_name() == kind
            # Each member commits what it has read before it gives a partition up, unless the coordinator dies.
            assert group.ledger.repeated == 0 or kind == "classic"
        work.stop()
        group.finish([sum(producer.ledger.sent[index] for producer in work.producers) for index in range(PARTITIONS)])

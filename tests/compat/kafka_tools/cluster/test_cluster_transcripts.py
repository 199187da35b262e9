"""Kafka's tools print the same output with three brokers of kbroker as with three nodes of Apache Kafka.

One cluster for all transcripts; each leaves it with all brokers running.
"""

import shutil
from collections.abc import Iterator
from difflib import unified_diff

import pytest

from tests.compat.kafka_tools.cluster.cluster_shell import HERE, ClusterShell, KbrokerNodes, Nodes
from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.kafka_tools.test_transcripts import brief
from tests.compat.kafka_tools.transcript import read, replay
from tests.compat.support import DEADLINE_S, need_own_broker


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    need_own_broker()
    directory = tmp_path_factory.mktemp("nodes")
    cluster = KbrokerNodes(directory)
    cluster.start()
    nodes = Nodes(cluster)
    yield nodes
    nodes.stop()
    shutil.rmtree(directory)


@pytest.mark.feature("cluster")
@pytest.mark.parametrize("stem", sorted(path.stem for path in HERE.glob("*.txt")))
def test_a_transcript(jvm: Jvm, nodes: Nodes, stem: str) -> None:
    shell = ClusterShell(jvm, nodes)
    recorded = read((HERE / f"{stem}.txt").read_text())
    try:
        printed = list(replay(shell, recorded, timeout_s=DEADLINE_S))
    finally:
        shell.close()
    differences = list(unified_diff(brief(recorded), brief(printed), "recorded", "printed", n=1, lineterm=""))
    assert not differences, "\n".join(differences)

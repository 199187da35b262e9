"""Kafka's tools print the same output with kbroker as with Apache Kafka. transcript.py describes the format."""

from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import pytest

from kbroker.common import ANONYMOUS
from kbroker.config.definitions.security import STANDARD_AUTHORIZER
from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.kafka_tools.transcript import ACLS, HERE, Shell, Step, read, replay, write
from tests.compat.support import DEADLINE_S, BrokerProcess, need_own_broker

FEATURES = {
    ACLS: "security",
    "topics": "topics",
    "consoles": "records",
    "groups": "group admin",
    "consumer_groups": "group admin",
    "verifiable": "consumer groups",
    "client_metrics": "client telemetry",
    "share_groups": "share groups",
    "configs": "configs",
    "features": "cluster",
    "quorum": "cluster",
    "quotas": "security",
    "reassignments": "cluster",
    "releases": "cluster",
    "security": "security",
    "transactions": "transactions",
}


@pytest.fixture
def with_authorizer(tmp_path: Path) -> Iterator[str]:
    need_own_broker()
    broker = BrokerProcess(tmp_path, {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": str(ANONYMOUS)})
    try:
        broker.start()
        yield broker.bootstrap
        broker.stop()
    finally:
        broker.end()


@pytest.fixture
def shell(jvm: Jvm, stem: str, request: pytest.FixtureRequest) -> Iterator[Shell]:
    opened = Shell(jvm, request.getfixturevalue("with_authorizer" if stem == ACLS else "bootstrap"))
    yield opened
    opened.close()


@pytest.mark.feature("cluster")
def test_every_transcript_is_replayed() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} == set(FEATURES)


@pytest.mark.parametrize(
    "stem", [pytest.param(stem, marks=pytest.mark.feature(feature)) for stem, feature in FEATURES.items()]
)
def test_a_transcript(shell: Shell, stem: str) -> None:
    recorded = read((HERE / f"{stem}.txt").read_text())
    printed = list(replay(shell, recorded, timeout_s=DEADLINE_S))
    differences = list(unified_diff(brief(recorded), brief(printed), "recorded", "printed", n=1, lineterm=""))
    assert not differences, "\n".join(differences)


def brief(steps: list[Step]) -> list[str]:
    return write(Step(step.command, step.output, []) for step in steps).splitlines()

"""Kafka's tools print the same output with kbroker as with Apache Kafka. transcript.py describes the format."""

from collections.abc import Iterator
from difflib import unified_diff

import pytest

from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.kafka_tools.transcript import HERE, Shell, Step, read, replay, write
from tests.compat.support import DEADLINE_S

FEATURES = {
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
def shell(jvm: Jvm, bootstrap: str) -> Iterator[Shell]:
    opened = Shell(jvm, bootstrap)
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

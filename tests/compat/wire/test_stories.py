"""Every API in every version, encoded and decoded by kio, compared with Apache Kafka 4.4.0.

Kafka's responses are in kafka-4.4.0-responses.json, recorded by record.py.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.compat.wire import kio_messages
from tests.compat.wire.differences import ABSENT, DIFFERENCES, Difference
from tests.compat.wire.record import steps_of
from tests.compat.wire.recorded_responses import RESPONSES_FILE, RecordedResponses, Steps
from tests.compat.wire.story import Cluster, load_stories

STORIES = load_stories()
RECORDED = RecordedResponses.load(RESPONSES_FILE)


@pytest.mark.feature("cluster")
def test_every_advertised_version_has_its_story(cluster: Cluster):
    recorded = {kio_messages.api_key(api): versions for api, versions in RECORDED.versions.items()}
    assert set(RECORDED.versions) == set(STORIES)
    if cluster.is_kbroker:
        assert cluster.versions == recorded
    else:
        assert recorded.items() <= cluster.versions.items()


@pytest.mark.parametrize(
    ("api", "version"),
    [
        pytest.param(api, version, marks=pytest.mark.feature(STORIES[api].feature), id=f"{api}-{version}")
        for api in STORIES
        for version in range(RECORDED.versions[api][0], RECORDED.versions[api][1] + 1)
    ],
)
def test_responses_are_those_of_kafka(cluster: Cluster, api: str, version: int):
    differences = DIFFERENCES if cluster.is_kbroker else ()
    expected = [row for row in differences if row.applies(api, version)]
    applied: list[Difference] = []
    unexpected = []
    for step, path, kafka, here in differing(RECORDED.steps(api, version), steps_of(cluster, api, version)):
        covering = [row for row in expected if row.covers(api, step, path, kafka, here)]
        applied += covering
        if not covering:
            unexpected.append(f"{step}: {path}: Kafka {kafka!r}, here {here!r}")
    assert not unexpected, f"{api} version {version}:\n" + "\n".join(unexpected)
    obsolete = [row.where for row in expected if row not in applied]
    assert not obsolete, f"{api} version {version}: no difference any more: {obsolete}"


def differing(kafka: Steps, here: Steps) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield (step, path, Kafka's value, value here) where the values differ."""
    for step in dict.fromkeys([*kafka, *here]):
        kafka_step, here_step = kafka.get(step, {}), here.get(step, {})
        for path in sorted({*kafka_step, *here_step}):
            values = kafka_step.get(path, ABSENT), here_step.get(path, ABSENT)
            if values[0] != values[1]:
                yield step, path, *values

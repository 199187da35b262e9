"""Every API in every version, as it crosses a socket: encoded and decoded by kio, compared with Apache Kafka 4.3.1.

What Kafka answered is in kafka-4.3.1-answers.json; record.py says how it got there.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.compat.wire import entities
from tests.compat.wire.differences import ABSENT, DIFFERENCES, Difference
from tests.compat.wire.golden import ANSWERS_FILE, Golden, Steps
from tests.compat.wire.play import Cluster
from tests.compat.wire.record import played
from tests.compat.wire.table import STORIES

GOLDEN = Golden.load(ANSWERS_FILE)


@pytest.mark.feature("cluster")
def test_every_version_that_is_advertised_has_its_story(cluster: Cluster):
    told = {entities.api_key(api): versions for api, versions in GOLDEN.versions.items()}
    assert set(GOLDEN.versions) == set(STORIES)
    if cluster.is_kbroker:
        assert cluster.versions == told
    else:
        assert told.items() <= cluster.versions.items()


@pytest.mark.parametrize(
    ("api", "version"),
    [
        pytest.param(api, version, marks=pytest.mark.feature(STORIES[api].feature), id=f"{api}-{version}")
        for api in STORIES
        for version in range(GOLDEN.versions[api][0], GOLDEN.versions[api][1] + 1)
    ],
)
def test_answers_as_kafka_does(cluster: Cluster, api: str, version: int):
    differences = DIFFERENCES if cluster.is_kbroker else ()
    expected = [row for row in differences if row.applies(api, version)]
    seen: list[Difference] = []
    unexpected = []
    for step, path, kafkas, ours in differing(GOLDEN.steps(api, version), played(cluster, api, version)):
        covering = [row for row in expected if row.covers(api, step, path, kafkas, ours)]
        seen += covering
        if not covering:
            unexpected.append(f"{step}: {path}: Kafka {kafkas!r}, here {ours!r}")
    assert not unexpected, f"{api} version {version}:\n" + "\n".join(unexpected)
    gone = [row.where for row in expected if row not in seen]
    assert not gone, f"{api} version {version}: no difference any more: {gone}"


def differing(kafkas: Steps, ours: Steps) -> Iterator[tuple[str, str, Any, Any]]:
    """(step, path, Kafka's value, ours) wherever they are not the same."""
    for step in dict.fromkeys([*kafkas, *ours]):
        theirs, own = kafkas.get(step, {}), ours.get(step, {})
        for path in sorted({*theirs, *own}):
            pair = theirs.get(path, ABSENT), own.get(path, ABSENT)
            if pair[0] != pair[1]:
                yield step, path, *pair

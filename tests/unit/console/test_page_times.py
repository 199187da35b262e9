"""Every view of a cluster with 1,000 topics and 500 groups is quick.

The processor time is that of the console and of the broker together, which share a process here. `pytest -s` prints it:
on a quiet machine with a core for each, a page takes less time than this.
"""

from collections.abc import Iterator
from time import perf_counter, process_time

import pytest

from kbroker.client.admin import TopicSpec, create_topics
from kbroker.client.groups import commit_offsets
from kbroker.testing import Broker
from tests.unit.console.browser import Browser, browse

TOPICS, GROUPS, CHUNK = 1000, 500, 100
ROUNDS = 3
# Several times what is measured, for a busy machine.
BOUND_S = 1.0
# The testing broker looks for expired segments 40 times a second, in all logs.
CONFIGS = {"log.retention.check.interval.ms": 300_000}


@pytest.fixture(scope="module")
def large() -> Iterator[Browser]:
    with Broker(CONFIGS) as kafka, browse(kafka.bootstrap) as browser:
        with kafka.client() as cluster:
            names = [f"topic-{number}" for number in range(TOPICS)]
            for start in range(0, TOPICS, CHUNK):
                create_topics(cluster, {name: TopicSpec(1) for name in names[start : start + CHUNK]})
            for number in range(GROUPS):
                offsets = {(names[number], 0): 0, (names[number + 1], 0): 0}
                assert not any(commit_offsets(cluster, f"group-{number}", offsets).values())
        yield browser


@pytest.mark.parametrize(
    "path",
    [
        "/topics", "/topics/topic-1", "/groups", "/groups/one?id=group-1", "/configs",
        "/configs/one?kind=topic&name=topic-1", "/configs/one?kind=broker&name=1", "/brokers", "/brokers/findings",
        "/queues", "/transactions", "/transactions/hanging",
    ],
)  # fmt: skip
def test_page(large: Browser, path: str) -> None:
    measured = []
    for _ in range(ROUNDS):
        began, began_processor = perf_counter(), process_time()
        page = large.open(path)
        measured.append((process_time() - began_processor, perf_counter() - began, len(page)))
    processor_s, elapsed_s, size = min(measured)
    print(f"{path}: {processor_s * 1000:.0f} ms of processor time, {elapsed_s * 1000:.0f} ms, {size >> 10} KiB")
    assert processor_s < BOUND_S

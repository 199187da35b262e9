"""The console's topics, their partitions and groups."""

import time

import pytest

from kbroker.client.groups import commit_offsets
from kbroker.console.kafka import Sample, Samples
from kbroker.testing import Broker
from tests.unit.console.browser import Browser, rows


def test_topics_have_figures_and_the_groups_that_read_them(kafka: Broker, browser: Browser) -> None:
    topic, empty = kafka.topic(partitions=2), kafka.topic(partitions=3)
    kafka.produce(topic, [b"v"] * 10)
    with kafka.client() as cluster:
        for number in range(5):
            commit_offsets(cluster, f"{topic}-g{number}", {(topic, 0): 0, (topic, 1): number})
    shown = {row[0]: row[1:] for row in rows(browser.open("/topics"), "topics")}
    assert shown[topic][:2] == ["2", "10"]
    assert shown[topic][2].endswith("bytes")
    # The groups that lag most.
    assert shown[topic][4:] == ["10", f"{topic}-g0 10 , {topic}-g1 9 , {topic}-g2 8 +2"]
    assert shown[empty] == ["3", "0", "0 bytes", "-", "-", ""]
    assert "__consumer_offsets" not in shown
    assert "__consumer_offsets" in browser.open("/topics?internal=1")
    by_records = [row[0] for row in rows(browser.open("/topics?sort=records"), "topics")]
    assert by_records.index(topic) < by_records.index(empty)


def test_a_topic_has_partitions_and_groups(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [b"v"] * 4)
    with kafka.client() as cluster:
        commit_offsets(cluster, topic, {(topic, 0): 1})
    page = browser.open(f"/topics/{topic}")
    shown = rows(page, "partitions")
    assert [row[0] for row in shown] == ["0", "1"]
    assert sum(int(row[2]) for row in shown) == 4
    assert f'<a href="/groups/one?id={topic}">{topic}</a>' in page


@pytest.mark.parametrize(
    "page", ["", "/records", "/records/step", "/tail", "/export", "/0/0", "/0/0/value", "/produce"]
)
def test_a_topic_that_does_not_exist_is_not_found(browser: Browser, page: str) -> None:
    assert "topic nowhere does not exist" in browser.open(f"/topics/nowhere{page}", 404)


def test_rates_are_those_of_the_last_half_minute() -> None:
    samples = Samples(5)
    now_s = time.monotonic()
    samples.samples += [
        Sample(now_s - age_s, {"t": value}) for age_s, value in ((100, 0), (40, 700), (10, 790), (0.5, 0))
    ]
    assert samples.rate("t", 1100) == pytest.approx(10, rel=0.01)
    assert samples.rate("new", 5) is None
    # Deleted and created again.
    assert samples.rate("t", 3) == 0
    samples.add({"t": 1})
    assert len(samples.samples) == 4
    samples.add({"t": 1, "u": 2})
    samples.add({"t": 1, "u": 2})
    assert len(samples.samples) == 5
    samples.add({"v": 2})
    assert len(samples.samples) == 5

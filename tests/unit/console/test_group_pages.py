"""The console's groups: lag, members, resets."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kbroker.client.group_member import BlockingMember
from kbroker.client.groups import commit_offsets, committed_offsets
from kbroker.client.requests import Partition
from kbroker.console.kafka import Sample, Samples
from kbroker.console.pages.groups import HEIGHT, MARGIN, WIDTH, lag_curve
from kbroker.testing import Broker
from tests.unit.console.browser import Browser, rows


def commit(kafka: Broker, group: str, offsets: dict[Partition, int]) -> None:
    with kafka.client() as cluster:
        assert not any(commit_offsets(cluster, group, offsets).values())


def committed(kafka: Broker, group: str) -> list[int]:
    with kafka.client() as cluster:
        return [offset for _, offset in sorted(committed_offsets(cluster, group).items())]


@contextmanager
def member(kafka: Broker, group: str, topic: str) -> Iterator[BlockingMember]:
    with kafka.client() as cluster:
        joined = BlockingMember(cluster, group, [topic])
        joined.join()
        yield joined
        joined.leave()


def test_groups_are_listed_with_the_largest_lag_first(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [b"v"] * 10)
    commit(kafka, "ahead", {(topic, 0): 5, (topic, 1): 4})
    commit(kafka, "<b>behind", {(topic, 0): 2})
    page = browser.open("/groups")
    assert "<b>behind" not in page
    shown = [row for row in rows(page, "groups") if row[0] in ("ahead", "<b>behind")]
    assert shown == [["<b>behind", "classic", "Empty", "0", "1", "3"], ["ahead", "classic", "Empty", "0", "2", "1"]]


def test_a_group_has_members_and_partitions(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [b"v"] * 6)
    with member(kafka, "members", topic) as joined:
        page = browser.open("/groups/one?id=members")
        [shown] = rows(page, "members")
        assert (shown[0], shown[5]) == (joined.member_id, f"{topic}: 0, 1")
        assert [row[:5] for row in rows(page, "offsets")] == [[topic, "0", "-", "3", "-"], [topic, "1", "-", "3", "-"]]
        assert "can be reset when the group has no members" in page
        refused = browser.preview("/groups/reset", 400, id="members", target="earliest", topics=topic)
        assert "has no members: it is Stable" in refused


def test_a_preview_commits_what_it_shows(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [b"v"] * 10)
    group = f"{topic} & <co>"
    commit(kafka, group, {(topic, 0): 4, (topic, 1): 1})
    preview = browser.preview("/groups/reset", id=group, target="latest")
    assert rows(preview, "preview") == [[topic, "0", "4", "5", "+1", ""], [topic, "1", "1", "5", "+4", ""]]
    assert committed(kafka, group) == [4, 1]
    # Records that come between preview and confirmation do not change what is committed.
    kafka.produce(topic, [b"v"] * 4)
    page = browser.confirm("/groups/reset", preview)
    assert [row[2:5] for row in rows(page, "offsets")] == [["5", "7", "2"], ["5", "7", "2"]]
    assert committed(kafka, group) == [5, 5]


@pytest.mark.parametrize(
    ("target", "value", "after"),
    [
        ("earliest", "", [0, 0]),
        ("offset", "3", [3, 3]),
        ("offset", "99", [5, 5]),
        ("shift", "-2", [2, 0]),
        ("shift", "+1", [5, 2]),
        ("time", "2100-01-01", [5, 5]),
        ("time", "1h", [0, 0]),
    ],
)
def test_targets(kafka: Broker, browser: Browser, target: str, value: str, after: list[int]) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [b"v"] * 10)
    commit(kafka, topic, {(topic, 0): 4, (topic, 1): 1})
    preview = browser.preview("/groups/reset", id=topic, target=target, value=value)
    assert [int(row[3]) for row in rows(preview, "preview")] == after


def test_some_partitions_of_a_new_group(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(partitions=3)
    kafka.produce(topic, [b"v"] * 9)
    preview = browser.preview("/groups/reset", id=f"new-{topic}", target="latest", topics=f"{topic}:0,2")
    browser.confirm("/groups/reset", preview)
    assert committed(kafka, f"new-{topic}") == [3, 3]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target": "offset", "value": "x"}, "an offset must be a whole number, not 'x'"),
        ({"target": "shift"}, "a shift must be a whole number, not ''"),
        ({"target": "time", "value": "soon"}, "expected a time such as"),
        ({"target": "<script>"}, "a target is earliest, latest, time, offset or shift, not '<script>'"),
        ({"target": "latest"}, "nothing is committed"),
        ({"target": "latest", "topics": "no-such-topic"}, "topic no-such-topic does not exist"),
        ({"confirmed": "yes", "offsets": "t,0"}, "the form, line 1: expected"),
        ({"confirmed": "yes"}, "the form has no offsets"),
    ],
)
def test_wrong_forms_have_one_sentence(browser: Browser, fields: dict[str, str], message: str) -> None:
    page = browser.preview("/groups/reset", 400, id="nobody", **fields)
    assert "<script>" not in page
    assert message in page.replace("&#39;", "'").replace("&lt;", "<").replace("&gt;", ">")


def test_the_curve_of_a_group() -> None:
    samples = Samples()
    assert lag_curve(samples, "g", 5, 100.0) is None
    samples.samples += [Sample(80.0, {"g": 0, "other": 1000}), Sample(90.0, {"other": 1}), Sample(90.0, {"g": 50})]
    curve = lag_curve(samples, "g", 25, 100.0)
    assert curve is not None
    assert curve.points == f"0,{HEIGHT - MARGIN} {WIDTH // 2},{MARGIN} {WIDTH},{HEIGHT // 2}"
    assert (curve.largest, curve.last, curve.seconds) == (50, 25, 20)


def test_the_curve_is_drawn_from_what_pages_have_read(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"v"] * 3)
    commit(kafka, "drawn", {(topic, 0): 1})
    assert "<polyline" not in browser.open("/groups/one?id=drawn")
    lags = browser.client.app.state.console.lags  # type: ignore[attr-defined]
    lags.samples.appendleft(Sample(lags.samples[-1].at_s - 60, {"drawn": 7}))
    page = browser.open("/groups/one?id=drawn")
    assert "<polyline" in page
    assert "at most 7" in page

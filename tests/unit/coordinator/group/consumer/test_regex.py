"""The regular expressions of a consumer group: when they are resolved, and what their resolution does to the group."""

from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.coordinator.group.consumer import regex_resolver
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.consumer.regex import REFRESH_INTERVAL_MS, GroupRegexes, ResolvedRegex, match_blocking
from protocol.errors import ErrorCode
from tests.unit.support.consumer_members import ModelMember, settle
from tests.unit.support.group_coordinator import NODE, Harness


@pytest.fixture
def broker() -> Iterator[Harness]:
    harness = Harness(group_consumer_session_timeout_ms=60_000)
    harness.create_topic("orders-1", 1)
    harness.create_topic("other", 1)
    yield harness
    harness.close()


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The expressions of each resolution."""
    found: list[list[str]] = []

    def match(regexes: list[str], topics: list[str], access: None) -> Any:
        found.append(regexes)
        return match_blocking(regexes, topics)

    monkeypatch.setattr(regex_resolver, "match_blocking", match)
    return found


def subscribe(broker: Harness, name: str, regex: str) -> ModelMember:
    member = ModelMember(name, set(), regex=regex)
    assert member.heartbeat(broker) is ErrorCode.NONE
    broker.loop.run_ready()
    return member


def topics_of(broker: Harness, member: ModelMember) -> set[str]:
    names = {topic.topic_id: name for name, topic in broker.metadata.topics.items()}
    return {names[topic_id] for topic_id, _ in member.owned}


def test_an_expression_is_resolved_once_for_all_its_members(broker: Harness, scans: list[list[str]]) -> None:
    members = [subscribe(broker, f"m{index}", "orders-.*") for index in range(3)]
    settle(broker, members)
    assert set().union(*(topics_of(broker, member) for member in members)) == {"orders-1"}
    # A new one does not wait for the interval, and the known one is not resolved again.
    members.append(subscribe(broker, "m3", "oth.*"))
    settle(broker, members)
    assert topics_of(broker, members[3]) == {"other"}
    assert scans == [["orders-.*"], ["oth.*"]]


def test_new_topics_are_found_at_most_once_in_an_interval(broker: Harness, scans: list[list[str]]) -> None:
    member = subscribe(broker, "m", "orders-.*")
    for number in (2, 3, 4):
        broker.create_topic(f"orders-{number}", 1)
        settle(broker, [member], rounds=3)
    assert topics_of(broker, member) == {"orders-1"}
    broker.loop.pass_ms(REFRESH_INTERVAL_MS)
    settle(broker, [member])
    settle(broker, [member])
    assert topics_of(broker, member) == {"orders-1", "orders-2", "orders-3", "orders-4"}
    # Without new topics nothing is resolved again.
    broker.loop.pass_ms(3 * REFRESH_INTERVAL_MS)
    settle(broker, [member], rounds=3)
    assert scans == [["orders-.*"]] * 2


def test_a_new_coordinator_resolves_again(broker: Harness, scans: list[list[str]]) -> None:
    """It does not know for which topics the former one has resolved the expressions."""
    member = subscribe(broker, "m", "orders-.*")
    settle(broker, [member])
    index = broker.groups.runtime.partition_for("g")
    broker.run(broker.elect(index, NODE + 1))
    broker.create_topic("orders-2", 1)
    broker.run(broker.elect(index, NODE))
    broker.loop.pass_ms(REFRESH_INTERVAL_MS)
    settle(broker, [member])
    settle(broker, [member])
    assert topics_of(broker, member) == {"orders-1", "orders-2"}


def test_an_expression_without_members_is_forgotten(broker: Harness) -> None:
    one, two = subscribe(broker, "one", "orders-.*"), subscribe(broker, "two", "oth.*")
    group = broker.shard().find(ConsumerGroup, "g")
    assert group is not None
    assert set(group.regexes.resolved) == {"orders-.*", "oth.*"}
    two.leave(broker)
    assert set(group.regexes.resolved) == {"orders-.*"}
    one.regex, one.sends_all = "", True
    one.heartbeat(broker)
    assert group.regexes.resolved == {}
    assert +group.regexes.members == {}


@pytest.mark.parametrize("regex", ["(", "a{1001}", r"(?=a)", "a" * 20_000])
def test_an_invalid_expression_is_refused(regex: str, broker: Harness) -> None:
    assert ModelMember("m", set(), regex=regex).heartbeat(broker) is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_an_expression_that_this_version_refuses_matches_nothing() -> None:
    assert match_blocking(["(", "o.*"], ["orders", "x"]) == [frozenset(), frozenset({"orders"})]


@pytest.mark.parametrize(
    ("refreshed", "now_ms", "is_due"), [(3, 99_999, False), (2, 9_999, False), (2, 10_000, True), (-1, 10_000, True)]
)
def test_all_are_due_when_there_are_new_topics_and_the_interval_has_passed(
    refreshed: int, now_ms: int, is_due: bool
) -> None:
    regexes = GroupRegexes()
    for name in ("a", "b"):
        regexes.replace(None, name)
        regexes.resolved[name] = ResolvedRegex(frozenset(), 0, 0)
    regexes.refreshed_version = refreshed
    assert regexes.due(3, now_ms) == (["a", "b"] if is_due else [])
    regexes.replace("b", "c")
    assert regexes.due(3, now_ms) == ["c"]
    regexes.is_resolving = True
    assert regexes.due(3, now_ms) == []

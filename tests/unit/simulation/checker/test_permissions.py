"""The checker of rights, on histories of one user, one topic and two brokers."""

import pytest

from kbroker.authorization.acl import Acl, Operation, PatternType, PermissionType, ResourceType
from kbroker.simulation.checker import check
from kbroker.simulation.checker.history import (
    GuardedRequest,
    History,
    Outcome,
    OutOfDate,
    SecurityChange,
    SettingKey,
)

READ = (Operation.READ, ResourceType.TOPIC, "orders")
ALLOW = Acl(
    ResourceType.TOPIC, PatternType.LITERAL, "orders", "User:alice", "*", *(Operation.READ, PermissionType.ALLOW)
)
DENY_ALL = Acl(ResourceType.TOPIC, PatternType.PREFIXED, "ord", "User:*", "*", *(Operation.ALL, PermissionType.DENY))
PASSWORD, QUOTA = ("password", "alice"), ("quota", "alice")
OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN


class Story:
    """A history whose times are seconds. alice has the password 1 from the start."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self.history = History(lambda: int(self._now_s * 1e9))
        self.changed(0.0, PASSWORD, 1)

    def changed(self, at_s: float, key: SettingKey, value: int, *, lost: bool = False) -> None:
        self._add(at_s, at_s + 0.1, "admin", SecurityChange(key, value, lost), OK)

    def request(
        self, at_s: float, outcome: Outcome = OK, *, until_s: float = 0.0, broker: int = 1, **more: int
    ) -> None:
        request = GuardedRequest("fetch", "alice", 1, broker, (READ,), **more)
        self._add(at_s, until_s or at_s + 0.1, "alice.0", request, outcome)

    def login(self, at_s: float, outcome: Outcome) -> None:
        self._add(at_s, at_s + 0.1, "alice.0", GuardedRequest("login", "alice", 1, 1), outcome)

    def out_of_date(self, from_s: float, until_s: float, broker: int = 1) -> None:
        self._add(from_s, until_s, "simulation", OutOfDate(broker), OK)

    def _add(self, from_s: float, until_s: float, process: str, action: object, outcome: Outcome) -> None:
        self._now_s = from_s
        operation = self.history.begin(process, action)  # type: ignore[arg-type]
        self._now_s = until_s
        self.history.end(operation, outcome)

    def anomalies(self) -> list[str]:
        return [found.kind for found in check(self.history, durable=False)]


@pytest.fixture
def story() -> Story:
    return Story()


def test_what_no_acl_allows_is_forbidden(story: Story):
    story.request(5)
    assert story.anomalies() == ["forbidden request"]


def test_what_an_acl_allows_must_not_be_refused(story: Story):
    story.changed(1, ALLOW, 1)
    story.request(5, OK)
    story.request(6, FAILED)
    assert story.anomalies() == ["refused request"]


def test_a_deny_wins_also_with_a_prefix_and_for_all_users(story: Story):
    story.changed(1, ALLOW, 1)
    story.changed(2, DENY_ALL, 1)
    story.request(5, FAILED)
    story.request(6, OK)
    assert story.anomalies() == ["forbidden request"]


def test_within_a_second_of_a_change_both_answers_are_right(story: Story):
    story.changed(1, ALLOW, 1)
    story.changed(5, ALLOW, 0)
    story.request(5.9, OK)
    story.request(6.0, FAILED)
    assert story.anomalies() == []
    story.request(6.2, OK)
    assert story.anomalies() == ["forbidden request"]


def test_a_broker_that_is_cut_off_decides_by_its_last_rules(story: Story):
    story.changed(1, ALLOW, 1)
    story.changed(5, ALLOW, 0)
    story.out_of_date(4.0, 20.0)
    story.request(15, OK)
    story.request(20.5, OK)
    assert story.anomalies() == []
    story.request(15, OK, broker=2)
    story.request(21.5, OK)
    assert story.anomalies() == ["forbidden request"] * 2


def test_any_broker_may_have_decided_about_a_forwarded_request(story: Story):
    story.changed(1, ALLOW, 1)
    story.changed(5, ALLOW, 0)
    story.out_of_date(4.0, 20.0, broker=2)
    story.request(15, OK, broker=0)
    assert story.anomalies() == []
    story.request(25, OK, broker=0)
    assert story.anomalies() == ["forbidden request"]


def test_an_attempt_without_a_response_may_be_carried_out_at_any_time(story: Story):
    story.changed(1, ALLOW, 1, lost=True)
    story.changed(5, ALLOW, 0)
    story.request(100, OK)
    story.request(101, FAILED)
    assert story.anomalies() == []


def test_a_fetch_with_later_records_was_checked_after_they_were_written(story: Story):
    story.changed(1, ALLOW, 1)
    story.changed(5, ALLOW, 0)
    story.request(4, OK, until_s=9)
    story.request(4, OK, until_s=9, newest_record_ns=int(6.0e9))
    assert story.anomalies() == []
    story.request(4, OK, until_s=9, newest_record_ns=int(8.0e9))
    assert story.anomalies() == ["forbidden request"]


def test_a_connection_ends_with_its_password(story: Story):
    story.changed(1, ALLOW, 1)
    story.changed(5, PASSWORD, 2)
    story.request(6, OK)
    assert story.anomalies() == []
    story.request(7, OK)
    story.login(8, OK)
    story.login(9, FAILED)
    assert story.anomalies() == ["revoked login"] * 2


def test_a_valid_password_must_not_be_refused(story: Story):
    story.login(5, FAILED)
    assert story.anomalies() == ["refused login"]


def test_only_users_with_a_quota_wait(story: Story):
    story.changed(1, ALLOW, 1)
    story.request(5, OK, produced_bytes=1000, throttle_ms=50)
    assert story.anomalies() == ["wrong quota"]


@pytest.mark.parametrize(("seconds", "found"), [(0.1, ["wrong quota"]), (1.0, [])])
def test_a_connection_above_the_quota_of_its_user_waits(story: Story, seconds: float, found: list[str]):
    story.changed(1, ALLOW, 1)
    story.changed(2, QUOTA, 1000)
    for number in range(10):
        story.request(5 + number * seconds, OK, produced_bytes=1000, throttle_ms=1)
    assert story.anomalies() == found

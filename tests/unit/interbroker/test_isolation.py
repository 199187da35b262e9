"""When a broker finds itself cut off from all others: a story of rounds of requests to them."""

import pytest

from kbroker.interbroker.isolation import (
    Contact,
    Isolation,
    can_be_replaced,
    min_silent_brokers,
    must_ask_all,
    others_are_silent,
)
from kbroker.metadata.image import PartitionRegistration

SESSION_MS = 6000
ANSWERS = {"+": Contact.RESPONSE, "x": Contact.REFUSED, "-": Contact.SILENCE}


def first_isolated(rounds: str, period_ms: int = 1000) -> int | None:
    """Return the time of the first round at which the broker is isolated, in milliseconds; None if it never is.

    `rounds` has a word for each round, with a sign for each unfenced broker: + responds, x refuses, - is silent.
    """
    isolation = Isolation()
    for number, word in enumerate(rounds.split()):
        now_ms = number * period_ms
        isolation.observe([ANSWERS[sign] for sign in word], now_ms, now_ms)
        if isolation.is_isolated(SESSION_MS):
            return now_ms
    return None


def test_silence_of_all_others_for_longer_than_a_session_is_isolation() -> None:
    assert first_isolated("++ " + "-- " * 20) == 11_000
    assert first_isolated("-- " * 20) == 10_000


def test_a_session_of_a_dead_broker_ends_earlier() -> None:
    """Then it is fenced, and the rounds do not ask it any more. ZooKeeper is at most half a timeout late."""
    assert first_isolated("---- " * 10 + "- " * 20) is None


@pytest.mark.parametrize("word", ["+", "-", "x", "+-", "-+", "++", "xx", "x-", "-x", "+---", "x+--"])
def test_a_response_or_a_lack_of_silent_brokers_is_not(word: str) -> None:
    assert first_isolated(f"{word} " * 100) is None


def test_a_single_response_restarts_the_time() -> None:
    assert first_isolated("-- " * 9 + "-+ " + "-- " * 20) == 20_000
    assert first_isolated(("-- " * 9 + "+- ") * 20) is None


def test_brokers_that_refuse_do_not_keep_the_others_from_counting() -> None:
    assert first_isolated("x-- " * 20) == 10_000


def test_a_broker_that_waits_for_its_controller_alone() -> None:
    isolation = Isolation()
    for now_ms in (0, 5_000, 9_000):
        isolation.observe([Contact.SILENCE], now_ms, now_ms, min_silent=1)
        assert not isolation.is_isolated(SESSION_MS)
    isolation.observe([Contact.SILENCE], 10_000, 10_000, min_silent=1)
    assert isolation.is_isolated(SESSION_MS)


def test_a_process_that_was_stopped_begins_again() -> None:
    """Rounds before and after show nothing of the time between them."""
    assert first_isolated("-- " * 10, period_ms=10_001) is None
    isolation = Isolation()
    isolation.observe([Contact.SILENCE] * 2, 0, 2_000)
    isolation.observe([Contact.SILENCE] * 2, 58_000, 60_000)
    assert not isolation.is_isolated(SESSION_MS)
    isolation.observe([Contact.SILENCE] * 2, 61_000, 67_001)
    assert isolation.is_isolated(SESSION_MS)


def test_a_reset_forgets_all_rounds() -> None:
    isolation = Isolation()
    for now_ms in (0, 5_000, 10_000):
        isolation.observe([Contact.SILENCE] * 2, now_ms, now_ms)
    assert isolation.is_isolated(SESSION_MS)
    isolation.reset()
    assert not isolation.is_isolated(SESSION_MS)


@pytest.mark.parametrize(("word", "silent"), [("", False), ("x", False), ("-", True), ("-x", True), ("-+", False)])
def test_a_leader_is_in_doubt_when_some_are_silent_and_none_responds(word: str, silent: bool) -> None:
    assert others_are_silent([ANSWERS[sign] for sign in word]) == silent


@pytest.mark.parametrize(
    ("is_connected", "is_controller", "controller", "min_silent"),
    [
        (False, False, "+", 2),
        (False, True, None, 2),
        (True, True, None, 2),
        (True, False, "-", 1),
        (True, False, "+", None),
        (True, False, "x", None),
        (True, False, None, None),
    ],
)
def test_how_many_silent_brokers_show_isolation(
    is_connected: bool, is_controller: bool, controller: str | None, min_silent: int | None
) -> None:
    contact = None if controller is None else ANSWERS[controller]
    rule = min_silent_brokers(is_connected=is_connected, is_controller=is_controller, controller=contact)
    assert rule == min_silent


def test_a_broker_asks_a_few_while_it_has_no_sign_of_being_cut_off() -> None:
    assert not must_ask_all(is_connected=True, is_controller=False, are_others_silent=False)
    assert must_ask_all(is_connected=False, is_controller=False, are_others_silent=False)
    assert must_ask_all(is_connected=True, is_controller=True, are_others_silent=False)
    assert must_ask_all(is_connected=True, is_controller=False, are_others_silent=True)


def test_a_broker_keeps_partitions_that_no_other_broker_can_lead() -> None:
    def led_by(leader: int, isr: list[int]) -> PartitionRegistration:
        return PartitionRegistration(replicas=[1, 2, 3], leader=leader, leader_epoch=0, isr=isr)

    assert not can_be_replaced(1, [led_by(1, [1]), led_by(2, [2, 3])])
    assert can_be_replaced(1, [led_by(1, [1]), led_by(1, [1, 3])])

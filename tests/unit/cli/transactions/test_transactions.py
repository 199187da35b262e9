"""What is shown of transactions, and which of them hang."""

import pytest

from kbroker.cli import main
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.formatting import format_duration
from kbroker.cli.common.parsing import parse_duration_ms, parse_topic_partitions
from kbroker.cli.transactions.app import summary
from kbroker.cli.transactions.hanging import marker_of, open_before, unknown_to_coordinators
from kbroker.cli.transactions.requests import Described, Filters, Producer, chosen


def producer(partition: int = 0, **changes: int | None) -> Producer:
    row = Producer("t", partition, 7, 2, 10, 5_000, None, 40)
    return row._replace(**changes)  # type: ignore[arg-type]


def described(*partitions: tuple[str, int], producer_id: int = 7, start_ms: int | None = 1_000) -> Described:
    return Described("id", "Ongoing", producer_id, 2, 60_000, start_ms, frozenset(partitions), 1)


def test_a_summary_has_partitions_by_topic_and_how_long_it_is_open() -> None:
    found = summary(described(("b", 0), ("a", 2), ("a", 0)), now_ms=4_500)
    assert found["partitions"] == {"a": [0, 2], "b": [0]}
    assert found["duration_ms"] == 3_500
    assert summary(described(start_ms=None), now_ms=4_500)["duration_ms"] is None
    # Its clock may be ahead of ours.
    assert summary(described(), now_ms=900)["duration_ms"] == 0


def test_only_open_transactions_of_silent_producers_are_looked_at() -> None:
    silent, unknown = producer(), producer(last_timestamp=None)
    done, busy = producer(start_offset=None), producer(last_timestamp=8_000)
    assert open_before([silent, done, busy, unknown], 6_000) == [silent, unknown]


@pytest.mark.parametrize(
    ("known", "hangs"),
    [
        (described(("t", 0)), False),
        (described(("t", 1), ("other", 0)), True),
        (described(("t", 0), producer_id=8), True),
        (None, True),
    ],
)
def test_what_no_coordinator_knows_hangs(known: Described | None, hangs: bool) -> None:
    found = unknown_to_coordinators([producer()], [] if known is None else [known])
    assert found == ([producer()] if hangs else [])


def test_the_marker_is_of_the_transaction_that_begins_there() -> None:
    producers = [producer(producer_id=1, start_offset=None), producer(coordinator_epoch=3), producer(start_offset=41)]
    assert marker_of(producers, ("t", 0), 40) == (7, 2, 3)
    assert marker_of(producers, ("t", 0), 41) == (7, 2, 0)
    with pytest.raises(CliError, match="t-0 has no open transaction that begins at offset 39"):
        marker_of(producers, ("t", 0), 39)


def test_partitions_are_chosen_and_must_exist() -> None:
    known = {("a", 0): 1, ("a", 1): 2, ("b", 0): 1}
    assert chosen(known, []) == known
    assert chosen(known, [parse_topic_partitions("a:1"), parse_topic_partitions("b")]) == {("a", 1): 2, ("b", 0): 1}
    with pytest.raises(CliError, match="topic a has no partition 2: it has 2"):
        chosen(known, [parse_topic_partitions("a:2")])


def test_filters_ask_for_the_version_that_has_them() -> None:
    assert Filters(["Ongoing"], [1]).version() == 0
    assert Filters(longer_than_ms=0).version() == 1
    assert Filters(pattern="").version() == 2


@pytest.mark.parametrize("text", ["0ms", "250ms", "1s", "1s500ms", "1m", "15m", "1h30m", "2d3h", "1h"])
def test_a_span_is_written_as_it_is_read(text: str) -> None:
    assert format_duration(parse_duration_ms(text)) == text


def test_a_span_has_two_units_at_most() -> None:
    assert format_duration(parse_duration_ms("1h2m3s")) == "1h2m"
    assert format_duration(parse_duration_ms("1h3s")) == "1h"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["list", "--state", "Running"], "--state must be one of Empty, Ongoing, "),
        (["list", "--longer-than", "soon"], "expected a duration"),
        (["abort", "t", "--start-offset", "1"], "expected TOPIC:PARTITION, not 't'"),
        (["abort", "t:0,1", "--start-offset", "1"], "expected TOPIC:PARTITION"),
        (["abort", "t:0"], "say --start-offset, or else --producer-id"),
        (["abort", "t:0", "--producer-id", "1", "--producer-epoch", "0"], "say --start-offset, or else"),
        (["abort", "t:0", "--start-offset", "1", "--producer-id", "1"], "say --start-offset, or else"),
        (["find-hanging", "--max-transaction-timeout", "15"], "expected a duration"),
        (["describe"], "Missing argument"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transactions", *arguments, "--bootstrap", "127.0.0.1:1"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert reason in shown.err
    assert shown.err.count("\n") == 1

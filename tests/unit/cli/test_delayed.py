"""`kbroker delayed`: the leader that gets a request, retries, pages, and what is printed."""

from typing import Any

import pytest

from kbroker.cli import delayed
from kbroker.cli.common.errors import CliError
from kbroker.cli.delayed import CANCEL, LIST, DelayedTopic, WaitingRecord, _row
from kbroker.client import retries
from kbroker.client.cluster import UnknownBroker
from kbroker.client.connection import BrokerUnreachable
from protocol.errors import ErrorCode
from protocol.messages.k10011_delayed_records import (
    DelayedRecord,
    DelayedRecordHeader,
    DelayedRecordResult,
    DelayedRecordsRequest,
    DelayedRecordsResponse,
)


class Brokers:
    """The leaders of partitions, one after the other as the metadata has them, and the responses to requests."""

    def __init__(self, leaders: list[dict[int, int]], responses: list[Any]) -> None:
        self.leaders = leaders
        self.responses = responses
        self.sent: list[tuple[int, DelayedRecordsRequest]] = []
        self.seconds = 0.0
        self.knows_delay = True
        self.waits: list[str] = []
        self.on_wait = self.waits.append

    def partition_leaders(self, client: Any, topics: list[str]) -> dict[tuple[str, int], int]:
        leaders = self.leaders.pop(0) if len(self.leaders) > 1 else self.leaders[0]
        return {(topics[0], index): leader for index, leader in leaders.items()}

    def request(self, request: DelayedRecordsRequest, response_type: type, broker: int) -> Any:
        sent = {name: getattr(request, name) for name in DelayedRecordsRequest.__rows__}
        self.sent.append((broker, DelayedRecordsRequest(**sent)))
        response = self.responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Any:
    def topic(leaders: list[dict[int, int]], responses: list[Any]) -> tuple[Brokers, DelayedTopic]:
        brokers = Brokers(leaders, responses)
        monkeypatch.setattr(delayed, "partition_leaders", brokers.partition_leaders)
        monkeypatch.setattr(delayed, "knows_delay", lambda client, topic: brokers.knows_delay)
        monkeypatch.setattr(retries, "monotonic", lambda: brokers.seconds)
        monkeypatch.setattr(retries, "sleep", brokers.sleep)
        return brokers, DelayedTopic(brokers, "t")

    return topic


def page(*offsets: int, has_more: bool = False) -> DelayedRecordsResponse:
    records = [DelayedRecord(offset=offset, due_ms=1000 + offset) for offset in offsets]
    return DelayedRecordsResponse(records=records, has_more=has_more)


def test_pages_follow_each_other(patched: Any):
    brokers, topic = patched([{0: 4}], [page(5, 7, has_more=True), page(9)])
    assert [pending.record.offset for pending in topic.pending(0, 2)] == [5, 7, 9]
    (leader, first), (_, second) = brokers.sent
    assert leader == 4
    assert (first.topic_name, first.partition_index, first.operation) == ("t", 0, LIST)
    assert first.after_offset == -1
    assert (second.after_due_ms, second.after_offset, first.max_records) == (1007, 7, 2)


def test_a_record_that_retention_moves_between_two_pages_is_yielded_once(patched: Any):
    first, second = [DelayedRecord(offset=offset, due_ms=1000) for offset in (5, 7)]
    moved = [DelayedRecord(offset=offset, due_ms=1000, moved_from=former) for offset, former in ((20, 5), (21, 8))]
    # Moved a second time; and the offset of a record that is due at another time.
    others = [DelayedRecord(offset=30, due_ms=1000, moved_from=20), DelayedRecord(offset=31, due_ms=1001, moved_from=7)]
    pages = [[first, second], [moved[0], moved[1]], others]
    responses = [DelayedRecordsResponse(records=each, has_more=each is not others) for each in pages]
    _, topic = patched([{0: 4}], responses)
    assert [pending.record.offset for pending in topic.pending(0, 2)] == [5, 7, 21, 31]


def test_a_request_follows_the_leader(patched: Any):
    moved = DelayedRecordsResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    gone = UnknownBroker(5)
    done = DelayedRecordsResponse(results=[DelayedRecordResult(offset=3), DelayedRecordResult(offset=8, error_code=91)])
    brokers, topic = patched([{1: 4}, {1: -1}, {1: 5}], [moved, gone, done])
    results = dict(topic.change(CANCEL, 1, [8, 3, 3]))
    assert [broker for broker, _ in brokers.sent] == [4, 5, 5]
    assert brokers.sent[2][1].offsets == [3, 8]
    assert results[3] is None
    assert "RESOURCE_NOT_FOUND" in results[8]


def test_brokers_of_apache_kafka_are_not_asked_again(patched: Any):
    brokers, topic = patched([{0: 4}], [BrokerUnreachable("the broker closed the connection")])
    brokers.knows_delay = False
    with pytest.raises(CliError, match="t: these brokers have no delayed delivery"):
        topic.counts(0)
    assert brokers.seconds == 0


def test_errors(patched: Any):
    refused = DelayedRecordsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message="no delayed delivery")
    _, topic = patched([{0: 4}], [refused])
    with pytest.raises(CliError, match="t-0: no delayed delivery"):
        topic.counts(0)
    with pytest.raises(CliError, match="no partition 7"):
        topic.partitions(7)
    brokers, topic = patched([{0: -1}], [])
    with pytest.raises(CliError, match="LEADER_NOT_AVAILABLE"):
        topic.counts(0)
    assert brokers.seconds >= delayed.RETRY_FOR_S
    assert brokers.waits == ["t-0: Leader not available (LEADER_NOT_AVAILABLE)"]


def test_a_row_and_its_json():
    headers = [DelayedRecordHeader(name=b"DELAY", value=b"3")]
    record = DelayedRecord(offset=5, due_ms=61_000, timestamp_ms=9, key=b"\xff", value_size=-1, headers=headers)
    pending = WaitingRecord(2, record)
    assert pending.to_json(False) == {
        "partition": 2,
        "offset": 5,
        "due_ms": 61_000,
        "timestamp_ms": 9,
        "key_base64": "/w==",
        "value_size": None,
        "headers": [{"key": "DELAY", "value": "3"}],
    }
    assert _row(pending, 1000, False)[3:] == ["1m", "\\xff", "DELAY=3"]
    assert _row(pending, 61_500, True)[3:] == ["-500ms", "\\xff", "DELAY=3", "null"]

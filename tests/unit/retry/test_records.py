"""A failed record's way through its retry topic to its dead-letter topic."""

from typing import Any

from kbroker.retry.policy import RetryPolicy
from kbroker.retry.records import (
    OutgoingRecord,
    ReceivedRecord,
    after_failure,
    failed_attempts,
    failure_records,
    is_pointer,
    last_headers,
    original_timestamp_ms,
    redriven_headers,
)

POLICY = RetryPolicy("orders", "billing", 3, (1000, 5000))
RECORD = ReceivedRecord("orders", 2, 41, b"key", b"value", (("trace", b"7"), ("trace", b"8"), ("none", None)), 1234)


def received(record: OutgoingRecord, **changes: Any) -> ReceivedRecord:
    return ReceivedRecord(record.topic, 0, 5, record.key, record.value, record.headers, 99_999)._replace(**changes)


def test_a_record_fails_until_it_is_a_dead_letter():
    first = after_failure(POLICY, RECORD, ValueError("no such shop"))
    assert (first.topic, first.key, first.value) == ("orders-billing-retry", b"key", b"value")
    assert first.headers == (
        *RECORD.headers,
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"2"),
        ("__dlq.errors.offset", b"41"),
        ("__dlq.errors.group", b"billing"),
        ("__dlq.errors.delivery.count", b"1"),
        ("__dlq.errors.message", b"no such shop"),
        ("kafka_dlt-exception-fqcn", b"ValueError"),
        ("kafka_dlt-original-timestamp", (1234).to_bytes(8)),
        ("TIMER_DELAY_MS", b"1000"),
    )
    second = after_failure(POLICY, received(first), OSError("disk"))
    headers = last_headers(second.headers)
    assert headers["TIMER_DELAY_MS"] == b"5000"
    assert headers["__dlq.errors.delivery.count"] == b"2"
    assert len(second.headers) == len(first.headers)
    last = after_failure(POLICY, received(second), OSError("disk"))
    headers = last_headers(last.headers)
    assert last.topic == "dlq.orders"
    assert "TIMER_DELAY_MS" not in headers
    assert [headers[f"__dlq.errors.{name}"] for name in ("topic", "partition", "offset", "delivery.count")] == [
        b"orders", b"2", b"41", b"3",
    ]  # fmt: skip
    assert original_timestamp_ms(last.headers) == 1234


def test_an_exception_without_retries():
    record = after_failure(POLICY, RECORD, KeyError("shop"), is_retryable=False)
    assert record.topic == "dlq.orders"
    assert last_headers(record.headers)["__dlq.errors.delivery.count"] == b"1"


def test_delays_of_the_producer_do_not_apply_again():
    record = after_failure(POLICY, RECORD._replace(headers=(("DELAY", b"18"), ("TIMER_DELIVER_MS", b"9"))), OSError())
    assert [name for name, _ in record.headers if name in ("DELAY", "TIMER_DELIVER_MS")] == []


def test_headers_in_the_original_topic_are_not_counted():
    """A dead letter that somebody has copied back by hand, or headers of another producer."""
    assert failed_attempts(POLICY, RECORD._replace(headers=(("__dlq.errors.delivery.count", b"9"),))) == 0


def test_a_malformed_count_counts_from_the_beginning():
    record = RECORD._replace(topic=POLICY.retry_topic, headers=(("__dlq.errors.delivery.count", b"-x"),))
    assert failed_attempts(POLICY, record) == 0


def test_a_long_message_is_cut_and_a_surrogate_is_escaped():
    headers = last_headers(after_failure(POLICY, RECORD, ValueError("\ud800" + "x" * 5000)).headers)
    assert len(headers["__dlq.errors.message"]) == 999 + len("\\ud800")


def test_the_headers_of_a_redriven_dead_letter():
    last = after_failure(POLICY, RECORD, OSError(), is_retryable=False)
    assert redriven_headers(last.headers) == (*RECORD.headers, ("kafka_dlt-original-timestamp", (1234).to_bytes(8)))


def test_a_record_that_is_refused_everywhere_becomes_a_pointer():
    records = list(failure_records(POLICY, RECORD, ValueError("m" * 5000)))
    assert [record.topic for record in records] == ["orders-billing-retry", "dlq.orders", "dlq.orders"]
    assert records[1].value == b"value"
    pointer = records[2]
    headers = last_headers(pointer.headers)
    assert (pointer.key, pointer.value, headers["kbroker.dlq.omitted"]) == (b"key", None, b"value,headers")
    assert [headers[f"__dlq.errors.{name}"] for name in ("topic", "partition", "offset")] == [b"orders", b"2", b"41"]
    assert "trace" not in headers
    assert original_timestamp_ms(pointer.headers) == 1234
    assert sum(len(name) + len(value or b"") for name, value in pointer.headers) < 500
    last = list(failure_records(POLICY, RECORD, ValueError("x"), is_retryable=False))
    assert [record.topic for record in last] == ["dlq.orders"] * 2
    assert is_pointer(last[1].headers)
    assert not is_pointer(last[0].headers)


def test_a_pointer_names_the_first_failure_and_omits_a_large_key():
    first = after_failure(POLICY, RECORD._replace(key=b"k" * 300), ValueError("x"))
    *_, pointer = failure_records(POLICY, received(first), ValueError("x"))
    headers = last_headers(pointer.headers)
    assert (pointer.key, headers["kbroker.dlq.omitted"]) == (None, b"key,value,headers")
    assert headers["__dlq.errors.offset"] == b"41"
    assert headers["__dlq.errors.delivery.count"] == b"2"
    assert original_timestamp_ms(pointer.headers) == 1234
    assert redriven_headers(pointer.headers) == (("kafka_dlt-original-timestamp", (1234).to_bytes(8)),)


def test_the_headers_of_a_delayed_delivery_are_not_kept():
    first = after_failure(POLICY, RECORD, ValueError("x"))
    delivered = [(f"kbroker.delayed.{name}", b"1") for name in ("from", "due.ms", "timestamp.ms")]
    second = after_failure(POLICY, received(first, headers=(*first.headers, *delivered)), ValueError("x"))
    assert not [name for name, _ in second.headers if name.startswith("kbroker.delayed")]
    assert not [name for name, _ in redriven_headers((*first.headers, *delivered)) if name.startswith("kbroker")]

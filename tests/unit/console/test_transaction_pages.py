"""The console's transactions: open ones by age, hanging ones, and how both are aborted."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import BrokerError, check
from kbroker.client.transactions import LAST_VERSIONS, BlockingTransactionalProducer
from kbroker.testing import Broker
from protocol.apis import ApiKey
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.k22_transactions import InitProducerIdRequest, InitProducerIdResponse
from protocol.records.batch import TRANSACTIONAL, build_batch
from tests.unit.console.browser import Browser, hidden_fields, rows

HOUR_MS = 3_600_000


@contextmanager
def client(kafka: Broker, versions: dict[int, int]) -> Iterator[ClusterClient]:
    host, _, port = kafka.bootstrap.rpartition(":")
    with ClusterClient([(host, int(port))], client_id="test", max_versions=versions) as cluster:
        yield cluster


def hang(kafka: Broker, topic: str) -> int:
    """Produce a record of an hour ago in a transaction without a coordinator, and return its producer id."""
    with client(kafka, {ApiKey.PRODUCE: 8}) as cluster:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        producer = cluster.request(request, InitProducerIdResponse)
        check(producer.error_code, "producer")
        batch = build_batch(
            [(round(time.time() * 1000) - HOUR_MS, None, b"hanging", [])], attributes=TRANSACTIONAL,
            producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, base_sequence=0,
        )  # fmt: skip
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
        produced = cluster.leader(topic, 0).request(
            ProduceRequest(transactional_id="-", acks=-1, timeout_ms=30_000, topic_data=[data]), ProduceResponse
        )
        check(produced.responses[0].partition_responses[0].error_code, topic)
        return producer.producer_id


def test_a_cluster_without_transactions_says_so(browser: Browser) -> None:
    assert "No producer has used a transactional id." in browser.open("/transactions")
    assert "None. Only producers" in browser.open("/transactions/hanging")


def test_an_open_transaction_is_listed_and_aborted(kafka: Broker, browser: Browser) -> None:
    topic, id_ = kafka.topic(partitions=2), "<pay>"
    with client(kafka, LAST_VERSIONS) as cluster:
        BlockingTransactionalProducer(cluster, "idle")
        producer = BlockingTransactionalProducer(cluster, id_)
        producer.add(topic, b"k", b"v", ())
        producer.flush()
        page = browser.open("/transactions")
        assert id_ not in page
        [row, idle] = rows(page, "transactions")
        assert (row[0], row[1], row[7].rpartition(":")[0]) == (id_, "Ongoing", topic)
        assert (idle[:3], idle[8]) == (["idle", "Empty", "-"], "")
        preview = browser.preview("/transactions/terminate", id=id_)
        assert rows(preview, "preview")[0][0] == "Ongoing"
        assert rows(browser.open("/transactions"), "transactions")[0][1] == "Ongoing"
        browser.confirm("/transactions/terminate", preview)
        assert {row[1] for row in rows(browser.open("/transactions"), "transactions")} <= {"Empty", "CompleteAbort"}
        producer.add(topic, b"k", b"v", ())
        with pytest.raises(BrokerError, match=r"FENCED|EPOCH"):
            producer.commit("g", {})
    assert kafka.consume(topic, read_committed=True) == []


def test_a_hanging_transaction_is_found_and_aborted(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"before"])
    producer_id = hang(kafka, topic)
    kafka.produce(topic, [b"behind"])
    [row] = rows(browser.open("/transactions/hanging"), "hanging")
    assert row[:5] == [topic, "0", str(producer_id), "0", "1"]
    assert rows(browser.open("/transactions/hanging?idle=2h"), "hanging") == []
    preview = browser.preview("/transactions/abort", topic=topic, partition=0, start_offset=1)
    assert [record.value for record in kafka.consume(topic, read_committed=True)] == [b"before"]
    assert "None. Only producers" in browser.confirm("/transactions/abort", preview)
    assert [record.value for record in kafka.consume(topic, read_committed=True)] == [b"before", b"behind"]
    again = browser.client.post("/transactions/abort", data=hidden_fields(preview))
    assert (again.status_code, "no open transaction that begins at offset 1" in again.text) == (400, True)


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("terminate", {"id": "nobody"}, "TRANSACTIONAL_ID_NOT_FOUND"),
        ("abort", {"topic": "no-such-topic"}, "topic no-such-topic does not exist"),
        ("abort", {"topic": "t", "partition": "x"}, "partition must be a number"),
        ("abort", {"topic": "t", "start_offset": "9" * 30}, "start_offset must be a number"),
    ],
)
def test_wrong_forms_have_one_sentence(browser: Browser, path: str, fields: dict[str, str], message: str) -> None:
    assert message in browser.preview(f"/transactions/{path}", 400, **fields)


def test_a_search_with_a_wrong_duration(browser: Browser) -> None:
    assert "expected a duration" in browser.open("/transactions/hanging?idle=soon", 400)

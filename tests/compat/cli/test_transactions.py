"""`kbroker transactions` against a broker."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from kafka.admin import KafkaAdminClient
from kafka.protocol.producer import ProduceRequest
from kafka.protocol.producer.transaction import InitProducerIdRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.compat.cli.conftest import Kbroker
from tests.compat.support import DEADLINE_S, eventually

pytestmark = pytest.mark.compat

HOUR_MS = 3_600_000
VERIFICATION = "transaction.partition.verification.enable"


@pytest.fixture
def transactional(bootstrap: str) -> Iterator[Callable[[str], Producer]]:
    """Factory of initialized producers by transactional id; their open transactions are aborted at the end."""
    producers = []

    def made(transactional_id: str) -> Producer:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
        producer.init_transactions(DEADLINE_S)
        producers.append(producer)
        return producer

    yield made
    for producer in producers:
        with suppress(KafkaException):  # no transaction is open, or the test has ended it
            producer.abort_transaction(DEADLINE_S)


def begin(producer: Producer, topic: str) -> None:
    """Begin a transaction with one record in partition 0."""
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=0)
    assert producer.flush(DEADLINE_S) == 0


def test_an_open_transaction_is_listed_and_described(
    kbroker: Kbroker, transactional: Callable[[str], Producer], name: str
) -> None:
    kbroker("topics", "create", name, "--partitions", "2")
    producer = transactional(name)
    [idle] = kbroker("transactions", "describe", name, "--json").json()
    assert (idle["state"], idle["start_ms"], idle["duration_ms"], idle["partitions"]) == ("Empty", None, None, [])
    begin(producer, name)

    [row] = kbroker("transactions", "list", "--pattern", f"{name}.*", "--json").json()
    assert (row["transactional_id"], row["state"]) == (name, "Ongoing")
    [described] = kbroker("transactions", "describe", name, "--json").json()
    assert described["producer_id"] == row["producer_id"]
    assert described["coordinator"] == row["coordinator"]
    assert described["timeout_ms"] == 60_000
    assert described["partitions"] == [{"topic": name, "partition": 0}]
    assert abs(described["start_ms"] - time.time() * 1000) < HOUR_MS
    [output] = kbroker("transactions", "describe", name).out.splitlines()[1:]
    assert output.split()[:5] == [name, "Ongoing", str(row["producer_id"]), str(described["producer_epoch"]), "1m"]
    assert output.endswith(f"  {name}:0")

    [at] = kbroker("transactions", "producers", name, "--json").json()
    assert (at["partition"], at["producer_id"], at["start_offset"]) == (0, row["producer_id"], 0)
    assert at["producer_epoch"] == described["producer_epoch"]
    assert kbroker("consume", name, "--read-committed").out == ""
    producer.commit_transaction(DEADLINE_S)
    # The commit is acknowledged before the markers are written.
    eventually(lambda: kbroker("consume", name, "--read-committed").out == "v\n", "the record is read")
    [at] = kbroker("transactions", "producers", f"{name}:0", "--json").json()
    assert at["start_offset"] is None
    assert kbroker("transactions", "producers", f"{name}:1", "--json").json() == []


def test_a_listing_is_filtered_by_the_broker(
    kbroker: Kbroker, try_kbroker: Kbroker, transactional: Callable[[str], Producer], name: str
) -> None:
    kbroker("topics", "create", name, "--partitions", "1")
    begin(transactional(f"{name}-open"), name)
    transactional(f"{name}-idle")
    numbers = {
        row["transactional_id"]: str(row["producer_id"])
        for row in kbroker("transactions", "list", "--pattern", f"{name}-.*", "--json").json()
    }
    assert sorted(numbers) == [f"{name}-idle", f"{name}-open"]

    def listed(*filters: str) -> list[str]:
        rows = kbroker("transactions", "list", "--json", *filters).json()
        return [row["transactional_id"] for row in rows if row["transactional_id"].startswith(name)]

    assert listed("--state", "ongoing") == [f"{name}-open"]
    assert listed("--state", "Empty", "--state", "Ongoing") == [f"{name}-idle", f"{name}-open"]
    assert listed("--state", "PrepareAbort") == []
    assert listed("--producer-id", numbers[f"{name}-idle"]) == [f"{name}-idle"]
    assert listed("--longer-than", "0ms") == [f"{name}-open"]
    assert listed("--longer-than", "1h") == []
    assert listed("--pattern", f"{name}-id.e") == [f"{name}-idle"]
    assert listed("--pattern", name) == []
    result = try_kbroker("transactions", "list", "--pattern", "(")
    assert result.status == 1
    assert result.err.endswith("(INVALID_REGULAR_EXPRESSION)\n")


def test_missing_transactions_topics_and_partitions_are_one_line(
    kbroker: Kbroker, try_kbroker: Kbroker, name: str
) -> None:
    unknown = try_kbroker("transactions", "describe", name)
    assert (unknown.status, unknown.out) == (1, "")
    assert unknown.err == f"kbroker: transactional id {name}: Transactional id not found (TRANSACTIONAL_ID_NOT_FOUND)\n"
    assert try_kbroker("transactions", "terminate", name).err == unknown.err
    assert try_kbroker("transactions", "producers", name).err == f"kbroker: topic {name} does not exist\n"
    kbroker("topics", "create", name, "--partitions", "1")
    for arguments in (["producers", f"{name}:1"], ["find-hanging", "--topic", f"{name}:1"]):
        assert try_kbroker("transactions", *arguments).err == f"kbroker: topic {name} has no partition 1: it has 1\n"
    nothing = try_kbroker("transactions", "abort", f"{name}:0", "--start-offset", "3")
    assert nothing.err == f"kbroker: {name}-0 has no open transaction that begins at offset 3\n"


def test_a_producer_is_fenced_and_its_transaction_aborted(
    kbroker: Kbroker, transactional: Callable[[str], Producer], name: str
) -> None:
    kbroker("topics", "create", name, "--partitions", "1")
    producer = transactional(name)
    begin(producer, name)
    done = kbroker("transactions", "terminate", name)
    assert done.out == f"{name}: producer fenced, transaction aborted\n"
    [described] = kbroker("transactions", "describe", name, "--json").json()
    assert described["partitions"] == []
    assert kbroker("consume", name, "--read-committed").out == ""
    assert kbroker("consume", name).out == "v\n"
    [at] = kbroker("transactions", "producers", name, "--json").json()
    assert at["start_offset"] is None
    with pytest.raises(KafkaException, match=r"fenced|epoch"):
        producer.commit_transaction(DEADLINE_S)


@pytest.fixture
def unverified(kbroker: Kbroker) -> Iterator[None]:
    """Disables the verification of transactional records (KIP-890), as before Kafka 3.6."""
    kbroker("configs", "set", "broker", "--default", f"{VERIFICATION}=false")
    yield
    kbroker("configs", "unset", "broker", "--default", VERIFICATION)


def hang(bootstrap: str, topic: str) -> int:
    """Produce a record with the time of an hour ago in a transaction without coordinator; returns its producer id."""
    client = KafkaAdminClient(bootstrap_servers=bootstrap)

    def send(request: Any) -> Any:
        async def send_and_wait() -> Any:
            return await client._manager.send(request)

        return client._manager.run(send_and_wait)

    def initialized() -> Any:
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        )
        response = send(request)
        return response if response.error_code == 0 else None

    try:
        producer = eventually(initialized, "a producer id")
        builder = DefaultRecordBatchBuilder(2, 0, True, producer.producer_id, producer.producer_epoch, 0, 1000)
        builder.append(0, round(time.time() * 1000) - HOUR_MS, None, b"hanging", [])
        Topic = ProduceRequest.TopicProduceData
        partition = Topic.PartitionProduceData(index=0, records=bytes(builder.build()))
        data = [Topic(name=topic, partition_data=[partition])]
        # Since version 12, Produce adds its partitions to the transaction.
        request = ProduceRequest(transactional_id="-", acks=-1, timeout_ms=30_000, topic_data=data, max_version=8)
        assert send(request).responses[0].partition_responses[0].error_code == 0
    finally:
        client.close()
    return int(producer.producer_id)


@pytest.mark.usefixtures("unverified")
@pytest.mark.parametrize("by", ["start offset", "producer"])
def test_a_hanging_transaction_is_found_and_aborted(
    kbroker: Kbroker, try_kbroker: Kbroker, transactional: Callable[[str], Producer], bootstrap: str, name: str, by: str
) -> None:
    kbroker("topics", "create", name, "--partitions", "1")
    kbroker("produce", name, "before")
    producer_id = hang(bootstrap, name)
    kbroker("produce", name, "behind")
    begin(transactional(name), name)  # an open transaction that its coordinator knows
    assert kbroker("consume", name, "--read-committed").out == "before\n"

    [hanging] = kbroker("transactions", "find-hanging", "--topic", name, "--json").json()
    assert (hanging["topic"], hanging["partition"], hanging["start_offset"]) == (name, 0, 1)
    assert hanging["producer_id"] == producer_id
    assert HOUR_MS <= hanging["idle_ms"] < 2 * HOUR_MS
    assert hanging in [
        {**row, "idle_ms": hanging["idle_ms"]}
        for row in kbroker("transactions", "find-hanging", "--broker", "1", "--json").json()
    ]
    assert kbroker("transactions", "find-hanging", "--broker", "99", "--json").json() == []
    assert kbroker("transactions", "find-hanging", "-t", name, "--max-transaction-timeout", "2h", "--json").json() == []
    every = kbroker("transactions", "find-hanging", "--topic", name, "--max-transaction-timeout", "0ms")
    assert [line.split()[:6] for line in every.out.splitlines()[1:]] == [[name, "0", str(producer_id), "0", "-", "1"]]
    assert "kbroker transactions abort TOPIC:PARTITION --start-offset OFFSET" in every.err

    options = ["--start-offset", "1"]
    if by == "producer":
        options = ["--producer-id", str(producer_id), "--producer-epoch", "0", "--coordinator-epoch", "-1"]
    done = kbroker("transactions", "abort", f"{name}:0", *options)
    assert done.out == f"{name}-0: aborted the transaction of producer {producer_id}, epoch 0\n"
    assert kbroker("transactions", "find-hanging", "--topic", name, "--json").json() == []
    assert kbroker("consume", name, "--read-committed").out == "before\nbehind\n"
    if by == "start offset":
        repeated = try_kbroker("transactions", "abort", f"{name}:0", *options)
        assert repeated.err == f"kbroker: {name}-0 has no open transaction that begins at offset 1\n"

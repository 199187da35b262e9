"""The metrics of a broker, scraped over a simulated network."""

import asyncio
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import kbroker
from kbroker.exporter.families import BY_NAME, FAMILIES, render_document
from kbroker.interbroker.peer_connection import PeerStats
from kbroker.queues.delay.pending_requests import PendingRequests
from kbroker.runtime.metrics import RequestStats
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.records.batch import build_batch
from tests.unit.support.client import Client, batch
from tests.unit.support.history import archived_topic
from tests.unit.support.http_client import LISTENER, get, open_connection
from tests.unit.support.share_consumer import ALONE, ShareConsumer, alter_group, initialize
from tests.unit.support.simulated_broker import Machine, broker_test

Labels = tuple[tuple[str, str], ...]


async def scrape(m: Machine) -> dict[str, dict[Labels, float]]:
    """Return the values by name and labels; fails if the text is invalid."""
    status, headers, body = await get(m)
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert int(headers["Content-Length"]) == len(body)
    samples: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(body.decode()):
        assert family.name not in samples, "a family occurs twice"
        for sample in family.samples:
            values = samples.setdefault(sample.name, {})
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in values, "a sample occurs twice"
            values[labels] = sample.value
    return samples


def at(topic: str, partition: int = 0) -> Labels:
    return (("partition", str(partition)), ("topic", topic))


async def commit(client: Client, topic: str, partition: int, offset: int) -> None:
    """Commit an offset of the group g, which has no members."""
    await client.request(FindCoordinatorRequest(coordinator_keys=["g"]), 4, FindCoordinatorResponse)
    part = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=-1, topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])]
    )
    code: int = ErrorCode.NOT_COORDINATOR
    while code:
        response = await client.request(request, 8, OffsetCommitResponse)
        code = response.topics[0].partitions[0].error_code
        await asyncio.sleep(0.01)


@broker_test(**LISTENER)
async def test_requests_and_records_are_counted(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 2)
    await client.create_topic("gone")
    await client.produce("gone", batch(b"x"))
    first = batch(b"a", b"b", b"c")
    await client.produce("t", first, 1)
    await client.produce("t", batch(b"d"), 0)
    assert (await client.produce("nothing", batch(b"e"))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await client.read("t", 0, 1) == [b"a", b"b", b"c"]
    await commit(client, "t", 1, 2)
    await client.delete_topic("gone")
    metrics = await scrape(m)

    topics = "kafka_server_brokertopicmetrics_"
    messages = metrics[topics + "messagesin_total"]
    assert messages[("topic", "t"),] == 4
    assert messages[()] == 5 + messages[("topic", "__consumer_offsets"),]
    assert (("topic", "gone"),) not in messages
    assert metrics[topics + "bytesin_total"][("topic", "t"),] == len(first) + len(batch(b"d"))
    assert metrics[topics + "bytesout_total"][("topic", "t"),] == len(first)
    assert metrics[topics + "totalproducerequests_total"][()] == 4
    assert metrics[topics + "failedproducerequests_total"][()] == 1
    requests = metrics["kafka_network_requestmetrics_requests_total"]
    assert sum(value for labels, value in requests.items() if ("request", "Produce") in labels) == 4
    assert (
        metrics["kafka_network_requestmetrics_errors_total"][
            ("error", "UNKNOWN_TOPIC_OR_PARTITION"), ("request", "Produce")
        ]
        == 1
    )
    for name in ("Produce", "Fetch", "FetchConsumer", "CreateTopics"):
        count = metrics["kafka_network_requestmetrics_totaltime_seconds_count"][("request", name),]
        assert count == sum(value for labels, value in requests.items() if ("request", name) in labels)
        total = metrics["kafka_network_requestmetrics_totaltime_seconds_bucket"][("le", "+Inf"), ("request", name)]
        assert total == count

    assert metrics["kafka_log_log_logendoffset"][at("t", 1)] == 3
    assert metrics["kafka_log_log_size"][at("t", 1)] == len(first)
    assert metrics["kafka_log_log_numlogsegments"][at("t", 1)] == 1
    assert metrics["kafka_topic_partitions"][("topic", "t"),] == 2
    assert metrics["kafka_topic_partition_current_offset"][at("t", 1)] == 3
    assert metrics["kafka_topic_partition_oldest_offset"][at("t", 1)] == 0
    assert metrics["kafka_server_replicamanager_partitioncount"][()] == 3
    assert metrics["kafka_controller_kafkacontroller_globaltopiccount"][()] == 2
    assert metrics["kafka_controller_kafkacontroller_activecontrollercount"][()] == 1
    assert metrics["kafka_brokers"][()] == 1
    assert metrics["process_open_fds"][()] > 0

    group = ("consumergroup", "g")
    assert metrics["kafka_consumergroup_current_offset"] == {(group, *at("t", 1)): 2}
    assert metrics["kafka_consumergroup_current_offset_sum"] == {(group, ("topic", "t")): 2}
    assert metrics["kafka_consumergroup_lag"] == {(group, *at("t", 1)): 1}
    assert metrics["kafka_consumergroup_lag_sum"] == {(group, ("topic", "t")): 1}
    assert metrics["kafka_consumergroup_members"][group,] == 0
    assert metrics["kafka_coordinator_group_groupmetadatamanager_numgroupsempty"][()] == 1
    assert metrics["kafka_coordinator_group_groupmetadatamanager_numoffsets"][()] == 1


@broker_test(**LISTENER)
async def test_the_lag_of_a_group_in_seconds(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 2)

    async def lag_seconds() -> float:
        return (await scrape(m))["kafka_consumergroup_lag_seconds"][("consumergroup", "g"), ("topic", "t")]

    for age_s, partition in ((700, 1), (300, 0), (200, 1), (100, 1)):
        await client.produce("t", build_batch([(m.now_ms - age_s * 1000, None, b"v", [])]), partition)
    await commit(client, "t", 1, 1)
    assert 200 <= await lag_seconds() < 205
    await commit(client, "t", 0, 0)
    assert 300 <= await lag_seconds() < 305
    await commit(client, "t", 0, 1)
    # Outside of the page cache: the header is read in a thread.
    m.disk.cold = 1.0
    assert 200 <= await lag_seconds() < 205
    await commit(client, "t", 1, 3)
    assert await lag_seconds() == 0
    # Neither a record without a timestamp nor a partition without a replica here says anything.
    await client.produce("t", build_batch([(-1, None, b"v", [])]), 1)
    assert "kafka_consumergroup_lag_seconds" not in await scrape(m)
    await client.delete_topic("t")
    assert "kafka_consumergroup_lag_seconds" not in await scrape(m)


@broker_test(**LISTENER)
async def test_the_version_and_the_disk(m: Machine) -> None:
    m.disk.capacity = m.disk.used + 5_000_000
    metrics = await scrape(m)
    ((labels, value),) = metrics["kbroker_build_info"].items()
    assert ("version", version("kbroker")) in labels
    assert value == 1
    assert metrics["kbroker_disk_size_bytes"][()] == m.disk.capacity
    assert 0 < metrics["kbroker_disk_free_bytes"][()] <= 5_000_000
    assert metrics["process_start_time_seconds"][()] > 0
    m.disk.capacity = None


@broker_test(**LISTENER)
async def test_delayed_requests_and_connections(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True)
    m.threads.held.add("flush_blocking")
    waiting = [
        client.send_produce("t", batch(b"a"), acks=-1),
        (await m.client()).send_fetch({("t", 0): 0}, max_wait_ms=50_000, min_bytes=1),
    ]
    await asyncio.sleep(0.01)
    metrics = await scrape(m)
    purgatory = metrics["kafka_server_delayedoperationpurgatory_purgatorysize"]
    assert purgatory[("delayedoperation", "Produce"),] == 1
    assert purgatory[("delayedoperation", "Fetch"),] == 1
    connections = "kafka_server_socket_server_metrics_connection_"
    assert metrics[connections + "count"][("listener", "PLAINTEXT"),] == 2
    m.threads.release("flush_blocking")
    await asyncio.gather(*waiting)
    (await m.client()).transport.write(b"\xff\xff\xff\xff")
    await asyncio.sleep(1)
    metrics = await scrape(m)
    assert metrics["kbroker_connections_closed_total"][("reason", "malformed frame"),] == 1
    assert metrics[connections + "creation_total"][("listener", "PLAINTEXT"),] == 3
    assert metrics[connections + "close_total"][("listener", "PLAINTEXT"),] == 1
    # In virtual time no timer is late, but the sum of floats may be rounded.
    assert metrics["kbroker_event_loop_delay_seconds_count"][()] >= 10
    assert metrics["kbroker_event_loop_delay_seconds_sum"][()] < 1e-6


@broker_test(**ALONE, **LISTENER)
async def test_the_page_has_exactly_the_documented_families(m: Machine) -> None:
    client = await m.client()
    topic_id = await client.create_topic("t")
    await client.produce("t", batch(b"a"))
    await client.produce("none", batch(b"a"))
    await client.read("t")
    await commit(client, "t", 0, 1)
    await initialize(m, "shared", topic_id)
    await alter_group(client, "shared", share_auto_offset_reset="earliest")
    await (await ShareConsumer.open(m, topic_id, "shared")).fetch(max_wait_ms=5000)
    await client.create_topic("later", kbroker_delay_enable=True)
    await client.produce("later", delayed(m, 600_000))
    await client.create_topic("once", kbroker_dedup_window_ms=60_000)
    await archived_topic(m, 2, kept=1, name="archived")
    await get(m)
    (await m.client()).transport.write(b"\xff\xff\xff\xff")
    log = m.partition("t").log
    log.health.full, log.health.offline = True, "broken"
    m.broker.services.quotas.count_throttled("producer_byte_rate", 1500)
    await asyncio.sleep(1)
    _, _, body = await get(m)
    log.health.full, log.health.offline = False, None
    names = {line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE ")}
    others = {name for name in names if name.startswith(("process_", "python_"))}
    assert len(others) > 5
    # Only a broker that follows others has their lag: tests/unit/exporter/test_replication.py.
    assert names - others == set(BY_NAME) - {"kafka_server_fetcherlagmetrics_consumerlag"}
    for line in body.decode().splitlines():
        if not line.startswith("#"):
            name, _, label_text = line.partition(" ")[0].partition("{")
            family = BY_NAME.get(name)
            if family is not None and label_text:
                assert {pair.split("=")[0] for pair in label_text.rstrip("}").split(",")} == set(
                    family.labels.split(", ")
                )


def delayed(m: Machine, *delays_ms: int) -> bytearray:
    """Build a compressed batch, which is read in a thread."""
    # So large that a thread decompresses it.
    rows = [(m.now_ms, None, bytes(100_000), [(b"TIMER_DELAY_MS", b"%d" % delay)]) for delay in delays_ms]
    return build_batch(rows, codec=1)


@broker_test(**LISTENER)
async def test_delayed_records(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", kbroker_delay_enable=True)
    m.threads.held.add("decompress")
    await client.produce("t", delayed(m, 500, 60_000, 60_000))
    partition = (("partition", "0"), ("topic", "t"))
    start_ms = m.now_ms
    delivery = m.broker.services.delayed.delivery_of(m.partition("t"))
    assert delivery is not None
    await m.until(lambda: delivery.is_loaded)
    metrics = await scrape(m)
    assert metrics["kbroker_delay_loading_partitions"][()] == 0
    assert metrics["kbroker_delay_pending_records"] == {partition: 3}
    assert abs(metrics["kbroker_delay_next_due_timestamp_seconds"][partition] - start_ms / 1000 - 0.5) < 0.1
    assert metrics["kbroker_delay_overdue_seconds"] == {partition: 0}
    await asyncio.sleep(10)
    assert 9 < (await scrape(m))["kbroker_delay_overdue_seconds"][partition] < 10
    m.threads.release("decompress")
    requests = PendingRequests(m.broker.environment, m.partition("t"), delivery)
    await requests.cancel([1])
    await requests.deliver_now([2])
    await asyncio.sleep(1)
    metrics = await scrape(m)
    assert metrics["kbroker_delay_pending_records"] == {partition: 0}
    assert "kbroker_delay_next_due_timestamp_seconds" not in metrics
    for name in ("delivered", "delivered_early", "cancelled"):
        assert metrics[f"kbroker_delay_{name}_records_total"][()] == 1
    assert 9 < metrics["kbroker_delay_lateness_seconds_total"][()] < 11
    assert metrics["kbroker_delay_max_lateness_seconds"] == metrics["kbroker_delay_lateness_seconds_total"]


@broker_test(**LISTENER)
async def test_idempotency_keys(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", kbroker_dedup_window_ms=60_000, kbroker_dedup_max_keys=1000)
    for numbers in (range(3), range(1, 3), range(2, 4), range(4, 1004)):
        rows = [(m.now_ms, None, b"v", [(b"IDEMPOTENCY_KEY", b"%d" % n)]) for n in numbers]
        assert (await client.produce("t", build_batch(rows))).error_code == 0
    metrics = await scrape(m)
    evicted = metrics["kbroker_dedup_evicted_keys_total"][()]
    assert evicted > 0
    assert metrics["kbroker_dedup_keys"] == {(("partition", "0"), ("topic", "t")): 1004 - evicted}
    assert metrics["kbroker_dedup_duplicate_records_total"][()] == 3


def test_the_document_is_generated_from_the_table() -> None:
    path = Path(kbroker.__file__).parent.parent / "docs" / "metrics.md"
    assert path.read_text() == render_document(), "python -m kbroker.exporter.families > docs/metrics.md"
    assert len(FAMILIES) == len(BY_NAME)


@broker_test
async def test_without_a_listener_there_is_no_exporter(m: Machine) -> None:
    with pytest.raises(ConnectionRefusedError):
        await open_connection(m)
    assert not hasattr(m.broker, "exporter")


@broker_test(**LISTENER)
async def test_traffic_between_brokers(m: Machine) -> None:
    """The listener for brokers has served a Fetch and refused a connection; this broker has sent requests, too."""
    client = await m.client()
    await client.create_topic("t")
    await client.fetch_partition("t", 0)
    fetch = RequestStats(ApiKey.FETCH, 17)
    fetch.requests, fetch.bytes_in = 3, 300
    fetch.observe(1_000_000)
    errors = SimpleNamespace(errors={(1, ErrorCode.FENCED_LEADER_EPOCH): 2}, closed={"inter-broker: no handshake": 1})
    context = SimpleNamespace(dispatch=SimpleNamespace(stats=lambda: [fetch]), errors=errors)
    exporter: Any = m.broker.exporter
    server = SimpleNamespace(context=context, connections={1: None}, strangers={2: None}, accepted=5)
    exporter._sources = exporter._sources._replace(inter_broker=server)
    stats = PeerStats()
    stats.connections, stats.connection_failures, stats.requests_without_response = 2, 3, 4
    services: Any = m.broker.services
    services.peers = SimpleNamespace(stats=stats)
    try:
        metrics = await scrape(m)
    finally:
        services.peers = None
    requests = metrics["kafka_network_requestmetrics_requests_total"]
    by_name: Counter[str] = Counter()
    for labels, count in requests.items():
        by_name[dict(labels)["request"]] += int(count)
    assert (by_name["Fetch"], by_name["FetchConsumer"], by_name["FetchFollower"]) == (4, 1, 3)
    assert metrics["kafka_network_requestmetrics_totaltime_seconds_count"][("request", "Fetch"),] == 2
    connections = "kafka_server_socket_server_metrics_connection_"
    assert metrics[connections + "count"][("listener", "INTERBROKER"),] == 2
    assert metrics[connections + "close_total"][("listener", "INTERBROKER"),] == 3
    assert metrics["kbroker_connections_closed_total"][("reason", "inter-broker: no handshake"),] == 1
    assert metrics["kbroker_peer_connections"][()] == 2
    assert metrics["kbroker_peer_connection_failures_total"][()] == 3
    assert metrics["kbroker_peer_requests_without_response_total"][()] == 4
    # A client has sent one of them.
    assert metrics["kafka_server_brokertopicmetrics_totalfetchrequests_total"][()] == 1


@broker_test(**ALONE, **LISTENER)
async def test_archives(m: Machine) -> None:
    """How far they lag behind is measured between two scrapes, and what consumers read from them is counted."""
    client = await archived_topic(m)
    await client.produce("t", batch(b"new", at_ms=m.now_ms))
    await client.fetch_partition("t", 0, max_wait_ms=1000)
    await client.create_topic("other", kbroker_archive_table="/other")
    assert (await scrape(m))["kbroker_archive_unknown_partitions"][()] == 2
    await asyncio.sleep(10)
    metrics = await scrape(m)
    assert metrics["kbroker_archive_unknown_partitions"][()] == 1
    labelled = ("partition", "0"), ("topic", "t")
    assert metrics["kbroker_archive_lag_records"][labelled] == 1
    assert 10 <= metrics["kbroker_archive_lag_seconds"][labelled] < 12
    assert metrics["kbroker_history_bytes_total"][()] > 1000
    assert metrics["kbroker_history_cache_bytes"][()] > 1000
    assert metrics["kbroker_history_process_starts_total"][()] == 1
    assert metrics["kbroker_history_failures_total"][("kind", "absent"),] == 1

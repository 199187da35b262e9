"""`kbroker bench`: what it measures, and that nothing of it stays."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.cli import bench, main
from kbroker.cli.bench import Measurement
from kbroker.client.admin import describe_topics
from kbroker.client.cluster import ClusterClient
from kbroker.client.producer import BlockingProducer
from kbroker.testing import Broker


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(bench, "monotonic", lambda: now[0])
    return now


def test_percentiles_are_those_of_records(clock: list[float]) -> None:
    measured = Measurement()
    assert measured.latency_ms() is None
    for latency_s, records in ((0.0101, 1), (0.001, 90), (0.005, 9)):
        measured.add(records, 1, latency_s)
    assert measured.latency_ms() == {"p50": 1.0, "p95": 5.0, "p99": 5.0, "max": 10.1}


def test_the_chart_has_few_rows_of_the_whole_time(clock: list[float]) -> None:
    measured = Measurement()
    for tenth in range(1, 33):
        clock[0] = tenth / 10 - 0.05
        measured.add(10 if tenth <= 16 else 30, 0, None)
    rows = measured.chart()
    assert [row["from_ms"] for row in rows] == [0, 400, 800, 1200, 1600, 2000, 2400, 2800]
    assert [row["records_per_second"] for row in rows] == [100, 100, 100, 100, 300, 300, 300, 343]


def test_the_report_has_bars(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    measured = Measurement()
    bench.print_report("consumed", "t", measured, False)
    assert capsys.readouterr().out == ""
    for clock[0], records in ((0.05, 100), (0.15, 50), (0.2, 0)):
        measured.add(records, records * 1000, 0.0123)
    bench.print_report("consumed", "t", measured, False)
    assert capsys.readouterr().out.splitlines() == [
        "consumed 150 records (146.5 KiB) in 0.20 s",
        "750 records/s, 0.8 MB/s",
        "latency: p50 12.3 ms, p95 12.3 ms, p99 12.3 ms, max 12.3 ms",
        f"    0.0 s  {'█' * 40}  1000/s",
        f"    0.1 s  {'█' * 20}{' ' * 20}  500/s",
    ]


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(kafka: Broker, capfd: pytest.CaptureFixture[str], *args: str) -> Any:
    assert main(["bench", *args, "--json", "-b", kafka.bootstrap]) == 0
    return json.loads(capfd.readouterr().out)


def topics(kafka: Broker) -> list[str]:
    host, port = kafka.bootstrap.split(":")
    with ClusterClient([(host, int(port))], client_id="test") as cluster:
        return [topic.name for topic in describe_topics(cluster) if topic.name.startswith("kbroker-bench")]


@pytest.mark.parametrize("options", [("--acks", "0"), ("--rate", "5000", "--linger", "1ms"), ("--compression", "lz4")])
def test_records_are_produced_to_a_temporary_topic(
    kafka: Broker, capfd: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    report = run(kafka, capfd, "produce", "--records", "500", "--size", "1KiB", "--batch-size", "16KiB", *options)
    assert (report["action"], report["records"], report["bytes"]) == ("produced", 500, 500 * 1024)
    assert (report["latency_ms"] is None) == ("0" in options)
    assert topics(kafka) == []


def test_an_existing_topic_keeps_the_records(kafka: Broker, capfd: pytest.CaptureFixture[str]) -> None:
    topic = kafka.topic(partitions=2)
    run(kafka, capfd, "produce", topic, "--records", "300")
    assert len(kafka.consume(topic, n=300)) == 300
    report = run(kafka, capfd, "consume", topic)
    assert (report["action"], report["topic"], report["records"], report["bytes"]) == ("consumed", topic, 300, 30_000)
    assert run(kafka, capfd, "consume", topic, "--records", "7")["records"] == 7
    assert run(kafka, capfd, "consume", "--records", "200", "--size", "10")["bytes"] == 2000
    assert topics(kafka) == []


def test_an_interrupt_deletes_the_topic(
    kafka: Broker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(producer: BlockingProducer, topic: str, *args: object) -> None:
        producer.add_values(topic, [b"v"])
        producer.flush()
        assert topics(kafka) == [topic]
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(bench, "_produce", interrupt)
    assert main(["bench", "produce", "-b", kafka.bootstrap]) == 130
    assert capfd.readouterr().out.startswith("produced 1 record ")
    assert topics(kafka) == []


def test_a_topic_that_cannot_be_deleted_is_named(kafka: Broker, capfd: pytest.CaptureFixture[str]) -> None:
    with kafka.fault(api="DeleteTopics", error="TOPIC_DELETION_DISABLED"):
        assert main(["bench", "produce", "-n", "10", "-b", kafka.bootstrap]) == 1
    [left] = topics(kafka)
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith(f"kbroker: topic {left} is left (kbroker topics delete {left}): Topic deletion")

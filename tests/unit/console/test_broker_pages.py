"""The console's brokers: disks, partitions with a problem, moves, and what doctor checks from outside."""

from time import monotonic, sleep

import pytest

from kbroker.cli.doctor.host import CheckResult
from kbroker.console.pages import brokers
from kbroker.testing import Broker, Cluster
from tests.unit.console.browser import Browser, browse, rows


def test_a_broker_has_a_disk_and_roles(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(partitions=3)
    kafka.produce(topic, [b"v" * 1000] * 3)
    page = browser.open("/brokers")
    [shown] = rows(page, "brokers")
    assert shown[:4] == ["1", kafka.bootstrap, "-", "controller"]
    assert int(shown[4]) == int(shown[5]) >= 3
    assert shown[6] == "0"
    assert shown[7].endswith("KiB")
    assert shown[9].endswith(("GiB", "TiB", "MiB"))
    assert '<dt>offline</dt><dd class="muted">0</dd>' in page
    assert "No partition is being reassigned." in page


def test_findings_of_doctor(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = rows(browser.open("/brokers/findings"), "findings")
    assert shown == [["ok", "replication", "default.replication.factor=1, min.insync.replicas=1", ""]]
    result = CheckResult("racks", "warning", "brokers without broker.rack: 1", "Set it for all brokers.")
    monkeypatch.setattr(brokers, "check_racks", lambda racks: [result])
    shown = rows(browser.open("/brokers/findings"), "findings")
    assert shown[0] == ["warning", "racks", result.message, result.advice]


def test_partitions_with_a_problem_are_named() -> None:
    with Cluster(brokers=2) as cluster, browse(cluster.bootstrap) as browser:
        topic = cluster.topic(replication_factor=2)
        assert rows(browser.open("/brokers"), "bad") == []
        cluster.kill(2)
        deadline = monotonic() + 30
        while ["under-replicated", topic, "0"] not in rows(browser.open("/brokers"), "bad"):
            assert monotonic() < deadline
            sleep(0.1)
        states = [row[3] for row in rows(browser.open("/brokers"), "brokers")]
        assert states == ["controller", "fenced"]


def test_a_full_disk_is_named() -> None:
    with Broker() as kafka, browse(kafka.bootstrap) as browser:
        topic = kafka.topic()
        kafka.disk.fill()
        with pytest.raises(Exception, match="KAFKA_STORAGE_ERROR"):
            kafka.produce(topic, [b"v"])
        assert "broker 1 cannot write to its disk: it refuses records until it can" in browser.open("/brokers")

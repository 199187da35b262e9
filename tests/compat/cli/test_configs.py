"""`kbroker configs` against a broker."""

from collections.abc import Iterator

import pytest

from tests.compat.cli.conftest import Kbroker

pytestmark = pytest.mark.compat


@pytest.fixture
def topic(kbroker: Kbroker, name: str) -> Iterator[str]:
    kbroker("topics", "create", name, "--partitions", "1")
    yield name
    kbroker("topics", "delete", name)


def values(kbroker: Kbroker, *resource: str) -> dict[str, str]:
    return {config["name"]: config["value"] for config in kbroker("configs", "get", *resource, "--json").json()}


def test_topic_configs_are_set_shown_and_unset(kbroker: Kbroker, try_kbroker: Kbroker, topic: str) -> None:
    done = kbroker("configs", "set", "topic", topic, "retention.ms=5000", "cleanup.policy=compact")
    assert done.out == f"topic {topic}: set: retention.ms, cleanup.policy\n"
    kbroker("configs", "set", "topic", topic, "--append", "cleanup.policy=delete")
    shown = kbroker(
        "configs", "get", "topic", topic, "retention.ms", "cleanup.policy", "segment.bytes"
    ).out.splitlines()
    assert [line.split() for line in shown] == [
        ["CONFIG", "VALUE", "SOURCE"],
        ["retention.ms", "5000", "topic"],
        ["cleanup.policy", "compact,delete", "topic"],
        ["segment.bytes", "1073741824", "default"],
    ]
    assert kbroker("configs", "get", "topic", topic, "--values", "retention.ms").out == "5000\n"
    assert set(values(kbroker, "topic", topic)) >= {"retention.ms", "cleanup.policy"}
    assert "segment.bytes" not in values(kbroker, "topic", topic)
    assert values(kbroker, "topic", topic, "--all")["segment.bytes"] == "1073741824"
    assert [topic, "retention.ms", "5000"] in [
        line.split()[1:] for line in kbroker("configs", "list", "topics").out.splitlines()
    ]

    kbroker("configs", "unset", "topic", topic, "retention.ms", "--dry-run")
    assert values(kbroker, "topic", topic)["retention.ms"] == "5000"
    kbroker("configs", "unset", "topic", topic, "retention.ms")
    assert "retention.ms" not in values(kbroker, "topic", topic)
    kbroker("configs", "unset", "topic", topic, "--all")
    assert kbroker("configs", "unset", "topic", topic, "--all").out == f"topic {topic}: nothing is set\n"
    assert topic not in kbroker("configs", "list").out


def test_describe_shows_type_synonyms_and_documentation(kbroker: Kbroker, topic: str) -> None:
    kbroker("configs", "set", "topic", topic, "retention.ms=5000")
    output = kbroker("configs", "get", "topic", topic, "retention.ms", "segment.bytes", "--describe").out.splitlines()
    assert output[0] == "retention.ms=5000  (long, source: topic)"
    assert "    topic: retention.ms=5000" in output
    assert "segment.bytes=1073741824  (int, source: default)" in output
    assert "    default: log.segment.bytes=1073741824" in output
    [config] = kbroker("configs", "get", "topic", topic, "retention.ms", "--json").json()
    assert (config["type"], config["source"], config["sensitive"]) == ("long", "DYNAMIC_TOPIC_CONFIG", False)
    assert config["documentation"]
    assert config["synonyms"][0] == {"name": "retention.ms", "value": "5000", "source": "DYNAMIC_TOPIC_CONFIG"}


def test_one_broker_and_all_brokers(kbroker: Kbroker) -> None:
    node = next(
        row["resource"] or "1"
        for row in [*kbroker("configs", "list", "brokers", "--json").json(), {"resource": None}]
        if row["resource"] != "-"
    )
    kbroker("configs", "set", "broker", node, "log.cleaner.threads=2")
    kbroker("configs", "set", "broker", "--default", "log.cleaner.threads=2")
    try:
        output = kbroker("configs", "get", "broker", node, "log.cleaner.threads", "--describe").out.splitlines()
        assert output[0] == "log.cleaner.threads=2  (int, source: broker)"
        assert "    all brokers: log.cleaner.threads=2" in output
        assert values(kbroker, "broker", "--default")["log.cleaner.threads"] == "2"
    finally:
        kbroker("configs", "unset", "broker", node, "log.cleaner.threads")
        kbroker("configs", "unset", "broker", "--default", "log.cleaner.threads")
    assert "log.cleaner.threads" not in values(kbroker, "broker", node)


@pytest.mark.parametrize(
    ("kind", "config"), [("group", "consumer.session.timeout.ms=50000"), ("client-metrics", "interval.ms=1000")]
)
def test_groups_and_client_metrics(kbroker: Kbroker, kind: str, config: str, group: str) -> None:
    kbroker("configs", "set", kind, group, config)
    rows = [line.split() for line in kbroker("configs", "list", kind).out.splitlines()]
    assert [kind, group, *config.split("=")] in rows
    kbroker("configs", "unset", kind, group, "--all")
    assert group not in kbroker("configs", "list", kind).out


def test_errors_are_one_line(try_kbroker: Kbroker, kbroker: Kbroker, topic: str) -> None:
    for command, reason in (
        (["get", "topic", f"{topic}-missing"], f"topic {topic}-missing does not exist"),
        (
            ["get", "topic", topic, "retention.m"],
            f"topic {topic} has no config retention.m (did you mean retention.ms?)",
        ),
        (["set", "topic", topic, "retention.ms=soon"], "(INVALID_CONFIG)"),
        (["set", "topic", topic, "no.such.config=1"], "(INVALID_CONFIG)"),
        (["set", "topic", topic, "retention.ms=5", "segment.ms=soon"], "(INVALID_CONFIG)"),
        (["set", "topic", f"{topic}-missing", "retention.ms=5"], f"topic {topic}-missing does not exist"),
        (["get", "broker", "77777"], "there is no broker 77777"),
        (["set", "broker", "--default", "node.id=3"], "(INVALID_REQUEST)"),
    ):
        done = try_kbroker("configs", *command)
        assert (done.status, done.out) == (1, "")
        assert reason in done.err
        assert done.err.count("\n") == 1
    assert "retention.ms" not in values(kbroker, "topic", topic)

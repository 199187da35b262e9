"""The console's configs: differences first, previews that the broker validates, values with units."""

import pytest

from kbroker.client.admin import topic_configs
from kbroker.console.pages.configs import default_of, readable
from kbroker.testing import Broker
from tests.unit.console.browser import Browser, rows


def set_configs(kafka: Broker, topic: str) -> dict[str, str]:
    with kafka.client() as cluster:
        return topic_configs(cluster, [topic], set_only=True)[topic]


def test_all_resources_are_listed(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic()
    shown = rows(browser.open("/configs"), "resources")
    assert shown[:2] == [["broker", "all brokers"], ["broker", "1"]]
    assert ["topic", topic] in shown


def test_what_differs_from_the_default_is_first(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(config={"segment.bytes": 4 << 20})
    shown = rows(browser.open(f"/configs/one?kind=topic&name={topic}"), "configs")
    by_name = {row[0]: row[1:4] for row in shown}
    assert by_name["segment.bytes"] == ["4194304 4.0 MiB", "topic", "1073741824 1.0 GiB"]
    # The testing broker sets log.retention.ms; what it overrides has another unit.
    assert by_name["retention.ms"] == ["-1", "static", f"{14 * 86_400_000} 14d"]
    sources = [row[2] for row in shown]
    assert sources == [*(source for source in sources if source != "default"), *["default"] * sources.count("default")]


@pytest.mark.parametrize("kind", ["broker&name=", "broker&name=1", "group&name=g/1", "client-metrics&name=m"])
def test_every_kind_has_a_page(browser: Browser, kind: str) -> None:
    assert "Configs of" in browser.open(f"/configs/one?kind={kind}")


@pytest.mark.parametrize(
    ("config", "value", "stored"),
    [("retention.ms", "5d", "432000000"), ("segment.bytes", "64MiB", "67108864"), ("retention.ms", "-1", "-1")],
)
def test_a_value_has_a_unit(kafka: Broker, browser: Browser, config: str, value: str, stored: str) -> None:
    topic = kafka.topic()
    fields = {"kind": "topic", "name": topic, "config": config, "operation": "SET", "value": value}
    preview = browser.preview("/configs/alter", **fields)
    assert rows(preview, "preview")[0][3] == stored
    assert set_configs(kafka, topic) == {}
    page = browser.confirm("/configs/alter", preview)
    assert rows(page, "configs")[0][:1] + rows(page, "configs")[0][2:3] == [config, "topic"]
    assert set_configs(kafka, topic) == {config: stored}


@pytest.mark.parametrize(
    ("operation", "value", "after"),
    [
        ("DELETE", "", "delete"),
        ("APPEND", "delete", "compact,delete"),
        ("SUBTRACT", "compact", ""),
        ("SET", "compact,delete", "compact,delete"),
    ],
)
def test_operations(kafka: Broker, browser: Browser, operation: str, value: str, after: str) -> None:
    topic = kafka.topic(config={"cleanup.policy": "compact"})
    fields = {"kind": "topic", "name": topic, "config": "cleanup.policy", "operation": operation, "value": value}
    if operation == "SUBTRACT":
        # The preview is what the broker says: a topic without a policy is allowed.
        assert rows(browser.preview("/configs/alter", **fields), "preview")[0][3] == after
        return
    preview = browser.preview("/configs/alter", **fields)
    assert rows(preview, "preview") == [["cleanup.policy", "compact", "", after, ""]]
    browser.confirm("/configs/alter", preview)
    assert set_configs(kafka, topic) == ({} if operation == "DELETE" else {"cleanup.policy": after})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"config": "retention.ms", "operation": "SET", "value": "1x"}, "expected a whole number or, for example, 7d"),
        ({"config": "segment.bytes", "operation": "SET", "value": "1"}, "INVALID_CONFIG"),
        ({"config": "retention.mss", "operation": "SET", "value": "1"}, "did you mean retention.ms?"),
        ({"config": "retention.ms", "operation": "set", "value": "1"}, "an operation is one of SET, DELETE"),
        ({"kind": "broker", "name": "1", "config": "node.id", "operation": "SET", "value": "2"}, "properties file"),
        ({"kind": "broker", "name": "x", "config": "node.id", "operation": "SET", "value": "2"}, "is a broker id"),
        ({"kind": "broker", "name": "7", "config": "node.id", "operation": "DELETE"}, "there is no broker 7"),
        ({"kind": "thing", "config": "node.id", "operation": "DELETE"}, "expected topic, broker"),
        ({"kind": "topic", "name": "", "config": "a", "operation": "DELETE"}, "the topic has no name"),
        ({"name": "no-such-topic", "config": "a", "operation": "DELETE"}, "topic no-such-topic does not exist"),
    ],
)
def test_wrong_changes_have_one_sentence(kafka: Broker, browser: Browser, fields: dict[str, str], message: str) -> None:
    topic = kafka.topic()
    page = browser.client.post("/configs/alter", data={"kind": "topic", "name": topic, **fields})
    assert page.status_code in (400, 502)
    assert message in page.text
    assert set_configs(kafka, topic) == {}


def test_readable_values() -> None:
    config = {"name": "log.retention.ms", "type": "long", "value": "5400000", "source": "DEFAULT_CONFIG"}
    assert readable(config, "5400000") == "1h30m"
    assert readable(config, str(2**63 - 1)) == "no limit"
    assert readable(config, "-1") == ""
    assert readable({**config, "name": "retention.hours"}, "5400000") == ""
    assert readable({**config, "name": "socket.send.buffer.bytes"}, "2048") == "2.0 KiB"
    synonyms = [{"name": "log.retention.hours", "value": "2", "source": "DEFAULT_CONFIG"}]
    inherited = {**config, "source": "STATIC_BROKER_CONFIG", "synonyms": synonyms, "sensitive": False}
    assert default_of(inherited) == "7200000"
    assert default_of({**inherited, "name": "log.retention.hours"}) == "2"
    assert default_of({**inherited, "synonyms": []}) is None

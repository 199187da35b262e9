"""`kbroker configs`: parsing of resources, selection and text of configs, and what is listed while a broker is away."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from kbroker.cli import main
from kbroker.cli.common.errors import CliError
from kbroker.cli.configs import app
from kbroker.cli.configs.app import own_configs, parse_resource, select_configs, value_text
from kbroker.cli.configs.requests import ALL_BROKERS, Resource, parse_kind
from protocol.messages.k32_describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from protocol.messages.k60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)


def config(name: str, source: str = "DEFAULT_CONFIG", value: str | None = "v", **fields: object) -> dict[str, Any]:
    return {"name": name, "value": value, "source": source, "sensitive": False, **fields}


TOPIC = Resource("topic", "t")
CONFIGS = [
    config("cleanup.policy"),
    config("retention.bytes", "STATIC_BROKER_CONFIG"),
    config("retention.ms", "DYNAMIC_TOPIC_CONFIG"),
]


@pytest.mark.parametrize(
    ("kind", "words", "default", "expected"),
    [
        ("topic", ["t", "a"], False, (TOPIC, ["a"])),
        ("Topics", ["t"], False, (TOPIC, [])),
        ("client-metrics", ["c"], False, (Resource("client-metrics", "c"), [])),
        ("broker", ["a"], True, (ALL_BROKERS, ["a"])),
    ],
)
def test_words_name_a_resource_and_configs(
    kind: str, words: list[str], default: bool, expected: tuple[Resource, list[str]]
) -> None:
    assert parse_resource(kind, words, default) == expected


@pytest.mark.parametrize(
    ("kind", "words", "default", "reason"),
    [
        ("queue", ["t"], False, "expected topic, broker"),
        ("topic", [], False, "missing the name of the topic"),
        ("broker", [], False, "a broker id, or --default"),
        ("topic", ["t"], True, "--default applies to broker"),
    ],
)
def test_a_missing_or_unknown_resource_is_wrong_usage(kind: str, words: list[str], default: bool, reason: str) -> None:
    with pytest.raises(CliError, match=reason) as error:
        parse_resource(kind, words, default)
    assert error.value.status == 2


def test_kinds_may_be_plural() -> None:
    kinds = ["topic", "broker", "group", "client-metrics", "logger"]
    assert [parse_kind(kind) for kind in kinds] == kinds
    assert [parse_kind(kind.removesuffix("s") + "s") for kind in kinds] == kinds


def names(configs: list[dict[str, Any]]) -> list[str]:
    return [config["name"] for config in configs]


def test_selected_configs_are_not_at_defaults_or_all_or_named() -> None:
    assert names(select_configs(TOPIC, CONFIGS, [], False)) == ["retention.bytes", "retention.ms"]
    assert names(select_configs(TOPIC, CONFIGS, [], True)) == ["cleanup.policy", "retention.bytes", "retention.ms"]
    assert names(select_configs(TOPIC, CONFIGS, ["retention.ms", "cleanup.policy"], False)) == [
        "retention.ms",
        "cleanup.policy",
    ]
    with pytest.raises(CliError, match=r"topic t has no config cleanup.polcy \(did you mean cleanup.policy\?\)"):
        select_configs(TOPIC, CONFIGS, ["cleanup.polcy"], False)


def test_own_configs_are_set_for_the_resource_itself() -> None:
    assert names(own_configs(TOPIC, CONFIGS)) == ["retention.ms"]
    both = [config("a", "DYNAMIC_BROKER_CONFIG"), config("b", "DYNAMIC_DEFAULT_BROKER_CONFIG")]
    assert names(own_configs(ALL_BROKERS, both)) == ["b"]
    assert names(own_configs(Resource("broker", "1"), both)) == ["a"]


def test_a_value_is_one_line_and_a_password_is_hidden() -> None:
    assert value_text(config("a", value="x\ny")) == "x\\ny"
    assert value_text(config("a", value=None)) == ""
    assert value_text(config("a", value="secret", sensitive=True)) == "(hidden)"


Capture = pytest.CaptureFixture[str]
DYNAMIC_BROKER_CONFIG = 2


class FakeClient:
    """Brokers 1, 2 and 3, of which only 1 and 3 respond."""

    def version(self, api_key: int) -> int:
        return 2

    def request(self, request: Any, response_type: type, broker: int | None = None) -> Any:
        if isinstance(request, DescribeClusterRequest):
            rows = [DescribeClusterBroker(broker_id=broker, is_fenced=broker == 2) for broker in (3, 1, 2)]
            return DescribeClusterResponse(brokers=rows)
        return described("")

    def request_all(self, sent: Sequence[tuple[int, Any]], *_: Any) -> list[tuple[int, Any]]:
        return [(broker, described(str(broker))) for broker, _ in sent if broker != 2]


def described(name: str) -> DescribeConfigsResponse:
    config = DescribeConfigsResourceResult(
        name="log.cleaner.threads", value="2", config_source=DYNAMIC_BROKER_CONFIG, config_type=3
    )
    row = DescribeConfigsResult(resource_type=4, resource_name=name, configs=[config] if name else [])
    return DescribeConfigsResponse(results=[row])


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def admin_client(bootstrap: str) -> Iterator[Any]:
        yield FakeClient()

    monkeypatch.setattr(app, "admin_client", admin_client)


def test_brokers_that_respond_are_listed(capsys: Capture) -> None:
    assert main(["configs", "list", "brokers"]) == 1
    output = capsys.readouterr()
    assert [row.split() for row in output.out.splitlines()] == [
        ["KIND", "NAME", "CONFIG", "VALUE"],
        ["broker", "1", "log.cleaner.threads", "2"],
        ["broker", "3", "log.cleaner.threads", "2"],
    ]
    assert output.err == "kbroker: broker 2 does not respond: what is set for it is not listed\n"


def test_as_json(capsys: Capture) -> None:
    assert main(["configs", "list", "brokers", "--json"]) == 1
    assert [row["resource"] for row in json.loads(capsys.readouterr().out)] == ["1", "3"]

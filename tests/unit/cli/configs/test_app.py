"""`kbroker configs`: parsing of resources, selection and text of configs."""

from typing import Any

import pytest

from kbroker.cli.common.errors import CliError
from kbroker.cli.configs.app import own_configs, parse_resource, select_configs, value_text
from kbroker.cli.configs.requests import ALL_BROKERS, Resource, parse_kind


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

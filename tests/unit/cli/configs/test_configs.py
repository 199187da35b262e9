"""`kbroker configs`: whose configs they are, which are shown, and how."""

from typing import Any

import pytest

from kbroker.cli.common.errors import CliError
from kbroker.cli.configs.configs import chosen, own, resource_of, shown
from kbroker.cli.configs.requests import ALL_BROKERS, Resource, kind_of


def config(name: str, source: str = "DEFAULT_CONFIG", value: str | None = "v", **more: object) -> dict[str, Any]:
    return {"name": name, "value": value, "source": source, "sensitive": False, **more}


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
    assert resource_of(kind, words, default) == expected


@pytest.mark.parametrize(
    ("kind", "words", "default", "reason"),
    [
        ("queue", ["t"], False, "expected topic, broker"),
        ("topic", [], False, "say which topic"),
        ("broker", [], False, "its number, or --default"),
        ("topic", ["t"], True, "--default goes with broker"),
    ],
)
def test_words_that_name_nothing_are_wrong_usage(kind: str, words: list[str], default: bool, reason: str) -> None:
    with pytest.raises(CliError, match=reason) as refused:
        resource_of(kind, words, default)
    assert refused.value.status == 2


def test_kinds_have_plurals() -> None:
    kinds = ["topic", "broker", "group", "client-metrics", "logger"]
    assert [kind_of(kind) for kind in kinds] == kinds
    assert [kind_of(kind.removesuffix("s") + "s") for kind in kinds] == kinds


def names(configs: list[dict[str, Any]]) -> list[str]:
    return [found["name"] for found in configs]


def test_shown_are_those_that_differ_or_all_or_the_named() -> None:
    assert names(chosen(TOPIC, CONFIGS, [], False)) == ["retention.bytes", "retention.ms"]
    assert names(chosen(TOPIC, CONFIGS, [], True)) == ["cleanup.policy", "retention.bytes", "retention.ms"]
    assert names(chosen(TOPIC, CONFIGS, ["retention.ms", "cleanup.policy"], False)) == [
        "retention.ms",
        "cleanup.policy",
    ]
    with pytest.raises(CliError, match=r"topic t has no config cleanup.polcy \(is it cleanup.policy\?\)"):
        chosen(TOPIC, CONFIGS, ["cleanup.polcy"], False)


def test_own_configs_are_those_set_for_the_resource_itself() -> None:
    assert names(own(TOPIC, CONFIGS)) == ["retention.ms"]
    both = [config("a", "DYNAMIC_BROKER_CONFIG"), config("b", "DYNAMIC_DEFAULT_BROKER_CONFIG")]
    assert names(own(ALL_BROKERS, both)) == ["b"]
    assert names(own(Resource("broker", "1"), both)) == ["a"]


def test_a_value_is_one_line_and_a_password_is_not_told() -> None:
    assert shown(config("a", value="x\ny")) == "x\\ny"
    assert shown(config("a", value=None)) == ""
    assert shown(config("a", value="secret", sensitive=True)) == "(hidden)"

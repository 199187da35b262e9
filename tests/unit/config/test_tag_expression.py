"""The filter expressions of views: what they select, and what is refused."""

import pytest

from kbroker.config.queue_configs import TagExpression, parse_tag_expression
from kbroker.config.topic_config import validate_topic_configs
from kbroker.config.values import ConfigError


@pytest.mark.parametrize(
    ("text", "tags", "keys"),
    [
        ("*", (), ()),
        (" * ", (), ()),
        ("TagA", (b"TagA",), ()),
        ("TagA || TagB", (b"TagA", b"TagB"), ()),
        ("TagA||TagB||TagA", (b"TagA", b"TagB"), ()),
        ("KEYS in (a, b)", (), (b"a", b"b")),
        ("bezahlt-ä || keys IN(k)", ("bezahlt-ä".encode(),), (b"k",)),
        ("KEYS", (b"KEYS",), ()),
    ],
)
def test_valid(text: str, tags: tuple[bytes, ...], keys: tuple[bytes, ...]) -> None:
    assert parse_tag_expression(text) == TagExpression(frozenset(tags), frozenset(keys))


@pytest.mark.parametrize(
    "text",
    ["", " ", "||", "TagA ||", "TagA || *", "A B", "A | B", "A && B", "KEYS in ()", "KEYS in (a,)", "KEYS in (a",
     "x" * 5000, " || ".join(f"t{number}" for number in range(300))],
)  # fmt: skip
def test_malformed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"kbroker\.view\.filter"):
        parse_tag_expression(text)


@pytest.mark.parametrize(
    "configs",
    [
        {"kbroker.view.filter": "TagA"},
        {"kbroker.view.of": "orders", "retention.ms": "1000"},
        {"kbroker.view.of": "orders", "kbroker.view.filter": "a b"},
    ],
)
def test_configs_that_make_no_sense(configs: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        validate_topic_configs(configs)

"""The precedence of the sources of broker configs."""

import pytest

from kbroker.config.sources.static_configs import StaticConfig, merge_sources


def test_the_last_source_takes_precedence():
    assert merge_sources({"a": StaticConfig("1", "f"), "b": StaticConfig("2", "f")}, {"b": StaticConfig("3", "g")}) == {
        "a": StaticConfig("1", "f"),
        "b": StaticConfig("3", "g"),
    }


@pytest.mark.parametrize(
    ("name", "alias"), [("log.dir", "log.dirs"), ("log.dirs", "log.dir"), ("broker.id", "node.id")]
)
def test_an_alias_in_a_later_source_replaces_the_other_name(name: str, alias: str):
    assert merge_sources({name: StaticConfig("1", "f")}, {alias: StaticConfig("2", "g")}) == {
        alias: StaticConfig("2", "g")
    }
    both = {name: StaticConfig("1", "f"), alias: StaticConfig("2", "f")}
    assert merge_sources(both) == both

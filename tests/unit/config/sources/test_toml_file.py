"""TOML config files: the line numbers of values, and values as Kafka's texts."""

from kbroker.config.sources.files import flatten, parse_toml_file
from kbroker.config.sources.static_configs import StaticConfig


def test_each_value_has_its_line_number():
    toml = '# a\n"a.b" = 1\n\n[c]\nd = true\n"e.f" = ["g", "h"]\n[ c . "i" ] # more\nj.k = "l"\nm = {n = 2}\n'
    assert parse_toml_file("f.toml", toml.encode()) == {
        "a.b": StaticConfig("1", "f.toml:2"),
        "c.d": StaticConfig("true", "f.toml:5"),
        "c.e.f": StaticConfig("g,h", "f.toml:6"),
        "c.i.j.k": StaticConfig("l", "f.toml:8"),
        "c.i.m.n": StaticConfig("2", "f.toml"),
    }


def test_values_become_the_texts_that_kafka_uses() -> None:
    table = {"a": {"b": True, "c": ["x", 1]}, "d.e": 1.5, "f": "g"}
    assert flatten(table) == {"a.b": "true", "a.c": "x,1", "d.e": "1.5", "f": "g"}

"""Config files: formats, the line numbers of values, configs that Kafka has removed."""

import pytest

from kbroker.config import BrokerConfig, ConfigError
from kbroker.config.sources.files import (
    drop_removed_configs,
    flatten,
    parse_config_file,
    parse_properties,
    parse_properties_file,
    parse_toml_file,
)
from kbroker.config.sources.static_configs import StaticConfig

STOCK = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
log.dirs=/tmp/kraft-combined-logs
log.retention.hours=168
"""


def texts(path: str, content: str) -> dict[str, str]:
    return {name: config.text for name, config in parse_config_file(path, content.encode()).items()}


@pytest.mark.parametrize("ending", [".conf", "", ".properties"])
def test_a_file_that_is_not_valid_toml_is_parsed_as_properties(ending: str):
    assert texts("f" + ending, "listeners=PLAINTEXT://:1,X://:2\n") == {"listeners": "PLAINTEXT://:1,X://:2"}


def test_a_file_with_another_ending_is_parsed_as_toml_if_it_is_valid():
    assert texts("f.conf", '[log]\ndirs = ["a", "b"]\n') == {"log.dirs": "a,b"}
    with pytest.raises(ConfigError, match=r"f\.toml is not valid TOML: .*line 1"):
        parse_config_file("f.toml", b"listeners=PLAINTEXT://:1")


def test_kafkas_server_properties_make_a_broker():
    config = BrokerConfig.load(texts("server.properties", STOCK))
    assert [str(endpoint) for endpoint in config.listeners] == ["PLAINTEXT://:9092"]
    assert [str(endpoint) for endpoint in config.advertised_listeners] == ["PLAINTEXT://localhost:9092"]
    assert config.log_dirs == ("/tmp/kraft-combined-logs",)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"process.roles": "controller", "listeners": "PLAINTEXT://a:1"}, "^process.roles must contain broker$"),
        ({"listeners": "CONTROLLER://a:1"}, "^listeners must contain a listener for clients"),
        ({"listeners": "X://a:1", "controller.listener.names": "x"}, "^listeners must contain a listener for clients"),
    ],
)
def test_a_configuration_of_a_controller_only_is_rejected(configs: dict[str, str], message: str):
    with pytest.raises(ConfigError, match=message):
        BrokerConfig.load(configs)


def test_configs_that_kafka_4_removed_are_ignored_with_a_warning():
    configs = parse_config_file("s.properties", b"zookeeper.clientCnxnSocket=x\nport=9092\nnode.id=1\nnope=1\n")
    kept, warnings = drop_removed_configs(configs)
    assert list(kept) == ["node.id", "nope"]
    assert warnings == [
        "zookeeper.clientCnxnSocket (s.properties:1) was removed in Kafka 4.0 and is ignored",
        "port (s.properties:2) was removed in Kafka 4.0 and is ignored",
    ]


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


# Texts, and their properties according to java.util.Properties (JDK 17).
JAVA = [
    ("a=b", {"a": "b"}),
    ("a:b", {"a": "b"}),
    ("a b", {"a": "b"}),
    ("a \t = \f b ", {"a": "b "}),
    ("a = = b", {"a": "= b"}),
    ("a=b=c:d", {"a": "b=c:d"}),
    ("a", {"a": ""}),
    ("=b", {"": "b"}),
    ("  # a=b\n\t!c\n \n\r\rd=e", {"d": "e"}),
    ("a=b#c", {"a": "b#c"}),
    ("a=b\nc=d\ra=e\r\nf=g", {"a": "e", "c": "d", "f": "g"}),
    ("a=b,\\\n   c,\\\r\n\td", {"a": "b,c,d"}),
    ("a=b\\\n# c", {"a": "b# c"}),
    ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
    ("# a\\\nb=c", {"b": "c"}),
    ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    ("a=b\\", {"a": "b"}),
    ("\\\n", {"": ""}),
    ("\\\n# a", {}),
    ("a\\=\\:\\ b=c", {"a=: b": "c"}),
    ("a=\\t\\n\\r\\f\\b\\\"\\'\\#", {"a": "\t\n\r\fb\"'#"}),
    ("a=\\u0041\\u20acx", {"a": "A€x"}),
    ("a=\\ud83d\\ude00", {"a": "😀"}),
]


@pytest.mark.parametrize(("text", "properties"), JAVA, ids=[repr(text) for text, _ in JAVA])
def test_properties_are_parsed_as_java_parses_them(text: str, properties: dict[str, str]):
    assert {name: value for name, value, _ in parse_properties("f", text)} == properties


def test_a_malformed_escape_is_reported_with_its_line():
    with pytest.raises(ConfigError, match=r"^f\.properties:3: Malformed \\uxxxx encoding\.$"):
        parse_properties_file("f.properties", b"a=b\n\nc=\\u12g4")


def test_each_value_of_a_properties_file_has_its_line_number():
    assert parse_properties_file("f.properties", b"# a\na=b,\\\n  c\n\nd=e\na=f") == {
        "a": StaticConfig("f", "f.properties:6"),
        "d": StaticConfig("e", "f.properties:5"),
    }


def test_properties_are_utf_8_or_else_latin_1():
    assert parse_properties_file("f.properties", "a=é€".encode())["a"].text == "é€"
    assert parse_properties_file("f.properties", "a=é".encode("latin-1"))["a"].text == "é"

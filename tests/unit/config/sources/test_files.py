"""Files of configs: TOML and server.properties."""

import pytest

from kbroker.config import BrokerConfig, ConfigError
from kbroker.config.sources.files import drop_removed_configs, flatten, parse_config_file, parse_properties
from kbroker.config.sources.static_configs import StaticConfig

# What java.util.Properties (JDK 17) makes of each text.
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
    return {name: one.text for name, one in parse_config_file(path, content.encode()).items()}


@pytest.mark.parametrize(("text", "meant"), JAVA, ids=[repr(text) for text, _ in JAVA])
def test_properties_are_read_as_java_reads_them(text: str, meant: dict[str, str]):
    assert {name: value for name, value, _ in parse_properties("f", text)} == meant


def test_a_malformed_escape_is_refused_with_its_line():
    with pytest.raises(ConfigError, match=r"^f\.properties:3: Malformed \\uxxxx encoding\.$"):
        parse_config_file("f.properties", b"a=b\n\nc=\\u12g4")


def test_each_value_knows_its_line():
    assert parse_config_file("f.properties", b"# a\na=b,\\\n  c\n\nd=e\na=f") == {
        "a": StaticConfig("f", "f.properties:6"),
        "d": StaticConfig("e", "f.properties:5"),
    }
    toml = '# a\n"a.b" = 1\n\n[c]\nd = true\n"e.f" = ["g", "h"]\n[ c . "i" ] # more\nj.k = "l"\nm = {n = 2}\n'
    assert parse_config_file("f.toml", toml.encode()) == {
        "a.b": StaticConfig("1", "f.toml:2"),
        "c.d": StaticConfig("true", "f.toml:5"),
        "c.e.f": StaticConfig("g,h", "f.toml:6"),
        "c.i.j.k": StaticConfig("l", "f.toml:8"),
        "c.i.m.n": StaticConfig("2", "f.toml"),
    }


def test_properties_are_utf_8_or_else_what_java_takes_them_for():
    assert parse_config_file("f.properties", "a=é€".encode())["a"].text == "é€"
    assert parse_config_file("f.properties", "a=é".encode("latin-1"))["a"].text == "é"


@pytest.mark.parametrize("ending", [".conf", "", ".properties"])
def test_a_file_of_another_name_is_what_it_can_be_read_as(ending: str):
    assert texts("f" + ending, "listeners=PLAINTEXT://:1,X://:2\n") == {"listeners": "PLAINTEXT://:1,X://:2"}


def test_toml_is_known_by_its_content_too():
    assert texts("f.conf", '[log]\ndirs = ["a", "b"]\n') == {"log.dirs": "a,b"}
    with pytest.raises(ConfigError, match=r"f\.toml is not valid TOML: .*line 1"):
        parse_config_file("f.toml", b"listeners=PLAINTEXT://:1")


def test_toml_values_become_what_kafka_writes() -> None:
    table = {"a": {"b": True, "c": ["x", 1]}, "d.e": 1.5, "f": "g"}
    assert flatten(table) == {"a.b": "true", "a.c": "x,1", "d.e": "1.5", "f": "g"}


def test_kafkas_own_server_properties_make_a_broker():
    config = BrokerConfig.load(texts("server.properties", STOCK))
    assert [str(endpoint) for endpoint in config.listeners] == ["PLAINTEXT://:9092"]
    assert [str(endpoint) for endpoint in config.advertised_listeners] == ["PLAINTEXT://localhost:9092"]
    assert config.log_dirs == ("/tmp/kraft-combined-logs",)


@pytest.mark.parametrize(
    "given",
    [
        {"process.roles": "controller", "listeners": "PLAINTEXT://a:1"},
        {"listeners": "CONTROLLER://a:1"},
        {"listeners": "X://a:1", "controller.listener.names": "x"},
    ],
)
def test_a_controller_alone_is_refused(given: dict[str, str]):
    with pytest.raises(ConfigError, match=r"^This is a broker: process\.roles must have broker"):
        BrokerConfig.load(given)


def test_what_kafka_4_has_no_more_is_left_out_and_told():
    given = parse_config_file("s.properties", b"zookeeper.connect=z:2181\nport=9092\nnode.id=1\nnope=1\n")
    kept, sentences = drop_removed_configs(given)
    assert list(kept) == ["node.id", "nope"]
    assert sentences == [
        "zookeeper.connect (s.properties:1) is of Kafka before 4.0 and is left out",
        "port (s.properties:2) is of Kafka before 4.0 and is left out",
    ]

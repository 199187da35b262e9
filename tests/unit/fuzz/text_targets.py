"""Text that users write: config files, and lines for `kbroker produce`."""

import json
from random import Random

from kbroker.cli.common.errors import CliError
from kbroker.cli.records.formats import record_from_json, record_from_line, to_json
from kbroker.client.consumer import CREATE_TIME, ConsumedRecord
from kbroker.config.broker.broker_config import BrokerConfig
from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.config.sources.files import parse_config_file
from kbroker.config.values import ConfigError
from tests.unit.fuzz.check import Target
from tests.unit.fuzz.damage import Case, text_spots

# A character that is not ASCII makes a str four times as large, and parsers have parts of it several times.
TEXT_MEMORY_PER_BYTE = 120


def targets() -> list[Target]:
    return [
        Target("config.toml", _toml, (ConfigError,), memory_per_byte=TEXT_MEMORY_PER_BYTE, constant=1 << 20, weight=3),
        Target(
            "config.properties",
            _properties,
            (ConfigError,),
            memory_per_byte=TEXT_MEMORY_PER_BYTE,
            constant=1 << 20,
            weight=3,
        ),
        Target(
            "config.values", _values, (ConfigError,), memory_per_byte=TEXT_MEMORY_PER_BYTE, constant=1 << 20, weight=10
        ),
        Target("cli.json_line", _json_line, (CliError,), memory_per_byte=TEXT_MEMORY_PER_BYTE),
        Target("cli.line", _line, (CliError,)),
    ]


_TOML = b"""# A broker.
listeners = "PLAINTEXT://0.0.0.0:9092"  # all
num.partitions = 6
auto.create.topics.enable = false
"log.dirs" = ["/a", '/b']
[log]
retention.hours = 72
[log.segment]
bytes = 1_073_741_824
[[x]]
y = {a = 1.5, b = [[1], [2]], c = 2026-11-21T00:00:00Z, d = \"\"\"
long\\u00e4\"\"\"}
"""
_PROPERTIES = rb"""# A broker.
! another comment
listeners=PLAINTEXT://0.0.0.0:9092
num.partitions : 6
log.dirs=/a,\
    /b
advertised\ name   caf\u00e9 \ud83d\ude42\t\q
log.retention.hours 72
""" + "größe=ä\r\n".encode("latin-1")


def _toml(rng: Random) -> Case:
    return _file("broker.toml", _TOML)


def _properties(rng: Random) -> Case:
    return _file(rng.choice(("server.properties", "broker.conf")), _PROPERTIES)


def _file(path: str, data: bytes) -> Case:
    def run(data: bytes) -> None:
        for name, value in parse_config_file(path, data).items():
            assert isinstance(name, str)
            assert isinstance(value.text, str)

    return Case(data, run, text_spots(data))


def _values(rng: Random) -> Case:
    """Existing configs with values of any type."""
    names = rng.sample([name for name, row in BROKER_CONFIGS.items() if row.default is not None], 4)
    texts = {name: rng.choice(("1", "true", "a,b", "-1", "1.5", "PLAINTEXT://h:1", "delete", "gzip")) for name in names}
    data = "\n".join(f"{name}={text}" for name, text in texts.items()).encode()

    def run(data: bytes) -> None:
        lines = (line.partition("=") for line in data.decode(errors="replace").split("\n"))
        BrokerConfig.load({name: text for name, _, text in lines})

    return Case(data, run, text_spots(data), good=False)


def _json_line(rng: Random) -> Case:
    fields = {
        "key": rng.choice(("k", None, "ä", 7, {"a": [1]})),
        "value_base64": "3q2+7w==",
        "headers": rng.choice(([{"key": "h", "value": "1"}], {"h": None}, [{"key": "h", "value_base64": "AA=="}])),
        "partition": 0,
        "timestamp": 1767225600000,
    }
    data = json.dumps(fields, ensure_ascii=rng.random() < 0.5).encode()

    def run(data: bytes) -> None:
        record = record_from_json(data)
        timestamp = -1 if record.timestamp is None else record.timestamp
        consumed = ConsumedRecord("t", 0, 0, timestamp, CREATE_TIME, record.key, record.value, tuple(record.headers))
        line = to_json(consumed)
        reparsed = record_from_json(line)
        assert (reparsed.key, reparsed.value, reparsed.headers) == (record.key, record.value, record.headers)

    return Case(data, run, text_spots(data))


def _line(rng: Random) -> Case:
    separator = rng.choice((None, b":", b"\xff"))

    def run(data: bytes) -> None:
        record = record_from_line(data, separator)
        line = record.value if separator is None else (record.key or b"") + separator + (record.value or b"")
        assert line == data

    return Case(b"key:value", run, good=separator != b"\xff")

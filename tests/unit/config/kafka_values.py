"""What Apache Kafka 4.3.1 says to good, bad and border values of every config, and how that is recorded:

    python -m tests.unit.config.kafka_values HOST:PORT CLASSPATH

HOST:PORT is a fresh node of Kafka; CLASSPATH names its jars. Two ways are asked: IncrementalAlterConfigs, only
validating, for what can be altered; Kafka's own KafkaConfig, in a JVM, for everything that a broker can be started
with. kafka_4_3_values.jsonl has a line for each way and config: [way, name, {value: null or [code, message]}], where
code is null for KafkaConfig's exceptions.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ANSWERS = HERE / "kafka_4_3_values.jsonl"
KAFKA = [json.loads(line) for line in (HERE / "kafka_4_3_configs.jsonl").open()]
# Not in Kafka's descriptions while nothing is set: [resource, name, type, default, range, mode].
UNLISTED = [
    ["topic", "internal.segment.bytes", "INT", None, "[1,...]", "cluster-wide"],
    ["client-metrics", "interval.ms", "INT", "300000", "", "cluster-wide"],
    ["client-metrics", "match", "LIST", "", "", "cluster-wide"],
    ["client-metrics", "metrics", "LIST", "", "", "cluster-wide"],
]

Answer = tuple[int | None, str] | None

# The ways: by the wire, to a resource of (type, name), or as the configuration of a broker that starts.
RESOURCES = {
    "topic": (2, "t"),
    "brokers": (4, ""),
    "broker": (4, "1"),
    "group": (32, "g"),
    "client-metrics": (16, "m"),
}
START = "start"

_BITS = {"SHORT": 15, "INT": 31, "LONG": 63}
_VALUES = {
    "BOOLEAN": ["", "true", "FALSE", "yes", "1"],
    "DOUBLE": ["", "x", "-1", "0", "0.5", "1", "1.5", "1e3", "1,5", "NaN"],
    "LIST": ["", "x", "a,b", "a,a", ",", "a,,b", " a , b ", "*", "*,a"],
    "STRING": ["", "x", "X Y"],
    "CLASS": ["", "x", "java.lang.String", "no.such.Class", "a b"],
    "PASSWORD": ["", "x"],
}


def values(kind: str, allowed: str, default: str | None) -> list[str]:
    """What a config of this type and range is tried with."""
    found = list(_VALUES.get(kind, ()))
    if kind in _BITS:
        most = 2 ** _BITS[kind] - 1
        bounds = [int(bound) for bound in allowed.strip("[]").split(",") if bound not in ("", "...")]
        around = [near for bound in bounds for near in (bound - 1, bound, bound + 1)]
        numbers = sorted({-2, -1, 0, 1, 2, 99, most, most + 1, *around})
        found = ["", "x", "1.5", "1_0", " 7 ", "+7", "0x7", *map(str, numbers)]
    return [*found, default] if default is not None and default not in found else found


def questions() -> Iterator[tuple[str, str, list[str]]]:
    """(way, config, values)."""
    for resource, name, kind, default, allowed, mode, *_ in [*KAFKA, *UNLISTED]:
        tried = values(kind, allowed, default)
        if resource != "broker":
            yield resource, name, tried
            continue
        yield START, name, tried
        if mode != "read-only":
            yield "brokers", name, tried
            yield "broker", name, tried


def main(bootstrap: str, classpath: str) -> None:
    asked = list(questions())
    started = iter(
        _ask_java(classpath, [(name, value) for way, name, tried in asked if way == START for value in tried])
    )
    wire = _Wire(bootstrap)
    save(
        [way, name, {value: next(started) if way == START else wire.ask(way, name, value) for value in tried}]
        for way, name, tried in asked
    )


def save(rows: Iterable[list[Any]]) -> None:
    refusals: dict[tuple[int | None, str], int] = {}

    def number(name: str, value: str, answer: Answer) -> int | None:
        if answer is None:
            return None
        code, message = answer
        template = message.replace(name, "{name}")
        if value.strip() and name:
            template = template.replace(f" {value.strip()} ", " {value} ")
        return refusals.setdefault((code, template), len(refusals))

    lines = [
        json.dumps([way, name, {value: number(name, value, answer) for value, answer in answers.items()}])
        for way, name, answers in rows
    ]
    ANSWERS.write_text("\n".join([json.dumps(list(refusals)), *lines]) + "\n")


def load() -> Iterator[tuple[str, str, str, Answer]]:
    """(way, config, value, answer), one after the other."""
    with ANSWERS.open() as file:
        refusals = json.loads(next(file))
        for line in file:
            way, name, answers = json.loads(line)
            for value, number in answers.items():
                if number is None:
                    yield way, name, value, None
                else:
                    code, template = refusals[number]
                    yield way, name, value, (code, template.replace("{name}", name).replace("{value}", value.strip()))


def _ask_java(classpath: str, asked: list[tuple[str, str]]) -> list[Answer]:
    lines = "".join(f"{name}\t{value}\n" for name, value in asked)
    command = ["java", "-Xmx256m", "-cp", classpath, str(HERE / "KafkaValues.java")]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    answers = [line.partition("\t") for line in done.stdout.split("\n")[:-1]]
    assert len(answers) == len(asked)
    return [None if name == "ok" else (None, message) for name, _, message in answers]


class _Wire:
    """IncrementalAlterConfigs with one config in each request."""

    def __init__(self, bootstrap: str) -> None:
        from tests.compat.wire.client import Connection

        self._connection = Connection(bootstrap)
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        self._connection.ask("CreateTopics", 5, topics=[topic], timeout=10_000, validate_only=False)

    def ask(self, way: str, name: str, value: str) -> Answer:
        kind, resource = RESOURCES[way]
        config = {"name": name, "config_operation": 0, "value": value}
        row = {"resource_type": kind, "resource_name": resource, "configs": [config]}
        answer = self._connection.ask("IncrementalAlterConfigs", 1, resources=[row], validate_only=True)
        (response,) = answer.responses
        return None if not response.error_code else (int(response.error_code), response.error_message)


if __name__ == "__main__":
    main(*sys.argv[1:])

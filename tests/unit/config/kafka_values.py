"""Recorded outcomes of valid, invalid and boundary values of every config in Apache Kafka 4.4.0. To record them:

    python -m tests.unit.config.kafka_values HOST:PORT CLASSPATH

HOST:PORT is a fresh Kafka node; CLASSPATH names its jars. Each value is tried by up to three methods: with
IncrementalAlterConfigs (validate_only) for each kind of resource, and in a KafkaConfig (in a JVM) for the configs that
a broker can be started with.

kafka_4_4_values.jsonl has a line for each method and config: [method, name, {value: outcome}]. An outcome is null or
the index of an error in the first line; an error is [code, message], where code is null for exceptions of KafkaConfig.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OUTCOMES = HERE / "kafka_4_4_values.jsonl"
KAFKA = [json.loads(line) for line in (HERE / "kafka_4_4_configs.jsonl").open()]
# Configs that Kafka does not describe until they are set: [resource, name, type, default, range, update mode].
UNLISTED = [
    ["topic", "internal.segment.bytes", "INT", None, "[1,...]", "cluster-wide"],
    ["client-metrics", "interval.ms", "INT", "300000", "", "cluster-wide"],
    ["client-metrics", "match", "LIST", "", "", "cluster-wide"],
    ["client-metrics", "metrics", "LIST", "", "", "cluster-wide"],
]

# (code, message) of an error, None for success.
Outcome = tuple[int | None, str] | None

# The methods: altering a resource (type, name), or starting a broker.
RESOURCES = {"topic": (2, "t"), "brokers": (4, ""), "broker": (4, "1"), "group": (32, "g"), "client-metrics": (16, "m")}
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


def values(config_type: str, valid_range: str, default: str | None) -> list[str]:
    """Return the values to try for a config of this type and range."""
    tried = list(_VALUES.get(config_type, ()))
    if config_type in _BITS:
        largest = 2 ** _BITS[config_type] - 1
        bounds = [int(bound) for bound in valid_range.strip("[]").split(",") if bound not in ("", "...")]
        around = [near for bound in bounds for near in (bound - 1, bound, bound + 1)]
        numbers = sorted({-2, -1, 0, 1, 2, 99, largest, largest + 1, *around})
        tried = ["", "x", "1.5", "1_0", " 7 ", "+7", "0x7", *map(str, numbers)]
    return [*tried, default] if default is not None and default not in tried else tried


def trials() -> Iterator[tuple[str, str, list[str]]]:
    """Yield (method, config, values)."""
    for resource, name, config_type, default, valid_range, mode, *_ in [*KAFKA, *UNLISTED]:
        tried = values(config_type, valid_range, default)
        if resource != "broker":
            yield resource, name, tried
            continue
        yield START, name, tried
        if mode != "read-only":
            yield "brokers", name, tried
            yield "broker", name, tried


def main(bootstrap: str, classpath: str) -> None:
    all_trials = list(trials())
    start_configs = [(name, value) for method, name, tried in all_trials if method == START for value in tried]
    start_outcomes = iter(_run_java(classpath, start_configs))
    client = _AlterConfigsClient(bootstrap)

    def try_value(method: str, name: str, value: str) -> Outcome:
        return next(start_outcomes) if method == START else client.alter(method, name, value)

    save(
        [method, name, {value: try_value(method, name, value) for value in tried}] for method, name, tried in all_trials
    )


def save(rows: Iterable[list[Any]]) -> None:
    errors: dict[tuple[int | None, str], int] = {}

    def error_index(name: str, value: str, outcome: Outcome) -> int | None:
        if outcome is None:
            return None
        code, message = outcome
        template = message.replace(name, "{name}")
        if value.strip() and name:
            template = template.replace(f" {value.strip()} ", " {value} ")
        return errors.setdefault((code, template), len(errors))

    lines = [
        json.dumps([method, name, {value: error_index(name, value, outcome) for value, outcome in outcomes.items()}])
        for method, name, outcomes in rows
    ]
    OUTCOMES.write_text("\n".join([json.dumps(list(errors)), *lines]) + "\n")


def load() -> Iterator[tuple[str, str, str, Outcome]]:
    """Yield (method, config, value, outcome)."""
    with OUTCOMES.open() as file:
        errors = json.loads(next(file))
        for line in file:
            method, name, outcomes = json.loads(line)
            for value, index in outcomes.items():
                if index is None:
                    yield method, name, value, None
                else:
                    code, template = errors[index]
                    message = template.replace("{name}", name).replace("{value}", value.strip())
                    yield method, name, value, (code, message)


def _run_java(classpath: str, configs: list[tuple[str, str]]) -> list[Outcome]:
    lines = "".join(f"{name}\t{value}\n" for name, value in configs)
    command = ["java", "-Xmx256m", "-cp", classpath, str(HERE / "KafkaValues.java")]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    outcomes = [line.partition("\t") for line in done.stdout.split("\n")[:-1]]
    assert len(outcomes) == len(configs)
    return [None if name == "ok" else (None, message) for name, _, message in outcomes]


class _AlterConfigsClient:
    """Sends IncrementalAlterConfigs requests with one config each."""

    def __init__(self, bootstrap: str) -> None:
        from tests.compat.wire.client import Client

        self._client = Client(bootstrap)
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        self._client.request("CreateTopics", 5, topics=[topic], timeout=10_000, validate_only=False)

    def alter(self, method: str, name: str, value: str) -> Outcome:
        resource_type, resource = RESOURCES[method]
        config = {"name": name, "config_operation": 0, "value": value}
        row = {"resource_type": resource_type, "resource_name": resource, "configs": [config]}
        response = self._client.request("IncrementalAlterConfigs", 1, resources=[row], validate_only=True)
        (result,) = response.responses
        return None if not result.error_code else (int(result.error_code), result.error_message)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Requests of client telemetry whose outcomes are compared with those of Apache Kafka 4.4.0.

kafka_4_4_telemetry.json was recorded from a new broker with telemetry.max.bytes=2000 and a plugin that receives client
metrics, and raises for a push of two bytes:

    python -m tests.unit.support.telemetry_story HOST:PORT > tests/unit/support/kafka_4_4_telemetry.json
"""

import json
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.client.connection import BrokerConnection
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.messages.k71_client_telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from protocol.schema.message import Message

RECORDED = Path(__file__).with_name("kafka_4_4_telemetry.json")
CLIENT_METRICS = 16
PRODUCER = "org.apache.kafka.producer."
INTERVAL_S = 1.5
# A change of configs may arrive later, and timers are not exact.
SETTLE_S = 0.3

Outcome = list[Any]


class Exchange(NamedTuple):
    """A request, and the class of its response."""

    request: Message
    version: int
    response_class: type[Message]


Steps = Generator[Exchange | float, Any, Outcome]


def alter(name: str, **configs: str | None) -> Steps:
    rows = [
        AlterableConfig(name=key.replace("_", "."), config_operation=int(value is None), value=value)
        for key, value in configs.items()
    ]
    resource = AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name=name, configs=rows)
    response = yield Exchange(IncrementalAlterConfigsRequest(resources=[resource]), 1, IncrementalAlterConfigsResponse)
    yield SETTLE_S
    return [response.responses[0].error_code, response.responses[0].error_message]


def instance_id(client: int) -> bytes:
    return bytes(range(client, client + 16))


def get(client: int) -> Steps:
    request = GetTelemetrySubscriptionsRequest(client_instance_id=instance_id(client))
    found = yield Exchange(request, 0, GetTelemetrySubscriptionsResponse)
    return [
        found.error_code, found.client_instance_id.hex(), found.subscription_id, found.accepted_compression_types,
        found.push_interval_ms, found.telemetry_max_bytes, sorted(found.requested_metrics),
    ]  # fmt: skip


def push(client_instance_id: bytes, subscription_id: int, **fields: Any) -> Steps:
    request = PushTelemetryRequest(client_instance_id=client_instance_id, subscription_id=subscription_id, **fields)
    response = yield Exchange(request, 0, PushTelemetryResponse)
    return [response.error_code, response.throttle_time_ms]


def story(outcomes: list[Outcome]) -> Generator[Exchange | float, Any, None]:
    """Yield exchanges, whose responses are sent in, and seconds to wait; append the outcomes."""

    def step(label: str, steps: Steps) -> Steps:
        outcome = yield from steps
        outcomes.append([label, *outcome])
        return outcome

    for configs in (
        {"metrics": "a,a"}, {"metrics": ""}, {"interval_ms": "99"}, {"interval_ms": "3600001"}, {"interval_ms": "x"},
        {"match": "client_id"}, {"match": "client_id="}, {"match": "client_id==a"}, {"match": "client_id=a=b"},
        {"match": "host=a"}, {"match": "client_id=("}, {"match": "client_id=a,client_id=b"}, {"unknown": "1"},
        {"match": " client_id = a "}, {"interval_ms": "99", "match": "x"}, {"unknown": "1", "interval_ms": "x"},
    ):  # fmt: skip
        yield from step(f"alter {configs}", alter("v", **configs))
    yield from step("no name", alter("", metrics="a"))
    yield from step("delete", alter("v", metrics=None, match=None, interval_ms=None))
    found = yield from step("no subscription", get(1))
    yield from step("a push without one", push(instance_id(1), found[2]))
    yield from step("subscribe", alter("v", metrics=PRODUCER, interval_ms=str(int(INTERVAL_S * 1000))))
    found = yield from step("get", get(2))
    own, subscription = instance_id(2), found[2]
    yield from step("early get", get(2))
    yield from step("first push", push(own, subscription))
    yield from step("early push", push(own, subscription))
    for label, fields in {
        "on time": {},
        "wrong subscription": {"subscription_id": 5},
        "unknown codec": {"compression_type": 9, "metrics": bytes(2001)},
        "too large": {"metrics": bytes(2001)},
        "not OTLP": {"metrics": b"\xff\xff"},
    }.items():
        yield INTERVAL_S + SETTLE_S
        yield from step(label, push(own, **{"subscription_id": subscription} | fields))
        yield from step(f"{label}: get", get(2))
        yield from step(f"{label}: get again", get(2))
    yield from step("early last push", push(own, subscription, terminating=True))
    yield from step("another last push", push(own, subscription, terminating=True))
    yield from step("one after it", push(own, subscription))
    yield from step("the next", push(own, subscription))
    for number in range(3):
        yield from step(f"id {number}", push(bytes(15) + bytes([number]), 1))
    yield from step("unknown client", push(instance_id(3), 1))
    yield from step("unknown client, last push", push(instance_id(4), 1, terminating=True))
    yield from step("get after it", get(4))
    found = yield from step("get", get(5))
    yield from step("change", alter("v", interval_ms="3000"))
    yield from step("early get after a change", get(5))
    yield from step("change again", alter("v", interval_ms="2000"))
    yield from step("push of an old subscription", push(instance_id(5), found[2]))
    yield from step("get at once", get(5))
    client = 6
    for configs in (
        {"metrics": "*", "interval_ms": "1000", "match": "client_source_port=[0-9]+"},
        {"match": "client_software_name=other"},
        {"match": "client_id=no"},
        {"metrics": PRODUCER, "interval_ms": "3600000", "match": None},
    ):
        yield from step(f"other {configs}", alter("other", **configs))
        yield from step("a new client", get(client))
        client += 1


def record(bootstrap: str) -> list[Outcome]:
    host, _, port = bootstrap.rpartition(":")
    outcomes: list[Outcome] = []
    steps, response = story(outcomes), None
    with BrokerConnection((host, int(port)), client_id="story") as connection, suppress(StopIteration):
        while True:
            step = steps.send(response)
            if isinstance(step, float):
                response = time.sleep(step)
            else:
                response = connection.request(step.request, step.response_class)
    return outcomes


if __name__ == "__main__":
    print("[\n" + ",\n".join(json.dumps(outcome) for outcome in record(sys.argv[1])) + "\n]")

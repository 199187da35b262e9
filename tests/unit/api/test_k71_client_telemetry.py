"""Client telemetry (KIP-714): clients ask what to report, and push it onto the metrics page."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
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
from protocol.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from tests.unit.exporter.test_exporter import scrape
from tests.unit.support.client import Client
from tests.unit.support.http_client import LISTENER
from tests.unit.support.otlp import counter, gauge, metrics_data
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.telemetry_story import RECORDED, story

CLIENT_METRICS = 16
ZERO = bytes(16)
SENT, LATENCY = "org.apache.kafka.producer.record.send.total", "org.apache.kafka.producer.request.latency.avg"


async def subscribe(client: Client, name: str, **configs: str) -> int:
    """Set the configs of a subscription; with "" they are deleted. Returns the error code."""
    rows = [
        AlterableConfig(name=config.replace("_", "."), config_operation=0 if value else 1, value=value or None)
        for config, value in configs.items()
    ]
    resource = AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name=name, configs=rows)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    response = await client.request(request, 1, IncrementalAlterConfigsResponse)
    return response.responses[0].error_code


async def ask(client: Client, instance_id: bytes = ZERO) -> GetTelemetrySubscriptionsResponse:
    request = GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
    return await client.request(request, 0, GetTelemetrySubscriptionsResponse)


async def push(client: Client, found: GetTelemetrySubscriptionsResponse, **fields: Any) -> int:
    """Push metrics, and return the error code."""
    defaults = {"client_instance_id": found.client_instance_id, "subscription_id": found.subscription_id}
    request = PushTelemetryRequest(**(defaults | fields))
    return (await client.request(request, 0, PushTelemetryResponse)).error_code


def payload(sent: int = 1) -> bytes:
    data = metrics_data(counter(SENT, sent), gauge(LATENCY, 2.5, node_id="1"))
    return data.SerializeToString()


async def named(m: Machine, software: str = "test-client") -> Client:
    client = await m.client()
    request = ApiVersionsRequest(client_software_name=software, client_software_version="1.0")
    response = await client.request(request, 3, ApiVersionsResponse)
    advertised = {row.api_key for row in response.api_keys}
    assert {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY} <= advertised
    return client


def reported(page: dict[str, Any]) -> dict[str, dict[Any, float]]:
    return {name: page[name] for name in page if name.startswith(("org_", "client_"))}


@broker_test()
async def test_without_a_metrics_page_clients_are_not_asked(m: Machine) -> None:
    client = await m.client()
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    response = await client.request(request, 3, ApiVersionsResponse)
    assert not {71, 72} & {row.api_key for row in response.api_keys}


@broker_test(**LISTENER)
async def test_what_a_client_reports_is_on_the_page_until_it_stays_away(m: Machine) -> None:
    client = await named(m)
    assert await subscribe(client, "s", metrics="org.apache.kafka.producer.", interval_ms="20000") == 0
    # It is for other clients.
    assert await subscribe(client, "o", metrics="*", match="client_software_name=other") == 0
    found = await ask(client)
    assert found.error_code == 0
    assert found.client_instance_id != ZERO
    assert found.requested_metrics == ["org.apache.kafka.producer."]
    assert (found.push_interval_ms, found.telemetry_max_bytes) == (20_000, 1 << 20)
    assert found.accepted_compression_types == [ZSTD, LZ4, GZIP, SNAPPY]
    assert not found.delta_temporality
    assert await push(client, found, metrics=compress(ZSTD, payload(5)), compression_type=ZSTD) == 0
    page = reported(await scrape(m))
    ((labels, sent),) = page["org_apache_kafka_producer_record_send_total"].items()
    assert sent == 5
    own = dict(labels)
    assert len(own.pop("client_instance_id")) == 22
    assert own == {"client_id": "story", "client_software_name": "test-client", "client_software_version": "1.0"}
    ((labels, latency),) = page["org_apache_kafka_producer_request_latency_avg"].items()
    assert (latency, dict(labels)["node_id"]) == (2.5, "1")
    await asyncio.sleep(20)
    # Each push replaces what the client has reported before.
    data = metrics_data(counter(SENT, 9)).SerializeToString()
    assert await push(client, found, metrics=data) == 0
    page = reported(await scrape(m))
    assert [list(samples.values()) for samples in page.values()] == [[9]]
    await asyncio.sleep(59)
    assert reported(await scrape(m))
    await asyncio.sleep(12)
    page = await scrape(m)
    assert not reported(page)
    assert page["kbroker_client_instances"] == {(): 0}
    assert not m.broker.services.client_metrics.instances


@broker_test(**LISTENER)
async def test_requests_that_are_too_early_or_too_late(m: Machine) -> None:
    client = await named(m)
    await subscribe(client, "s", metrics="*", interval_ms="60000")
    found = await ask(client)
    early = await ask(client, found.client_instance_id)
    assert early.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    # The first push may follow at any time.
    assert await push(client, found, metrics=payload()) == 0
    assert await push(client, found, metrics=payload()) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert (await ask(client, found.client_instance_id)).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    await asyncio.sleep(60)
    assert await push(client, found, metrics=payload()) == 0
    # A changed subscription is found out with the next push, and may be asked for at once.
    await subscribe(client, "s", interval_ms="30000")
    assert await push(client, found, metrics=payload(3)) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    changed = await ask(client, found.client_instance_id)
    assert (changed.error_code, changed.push_interval_ms) == (0, 30_000)
    assert changed.subscription_id != found.subscription_id
    assert (await ask(client, found.client_instance_id)).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert await push(client, changed, metrics=payload()) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    await asyncio.sleep(30)
    assert await push(client, changed, metrics=payload()) == 0
    # The last push may come at any time, and no other one after it.
    assert await push(client, changed, metrics=payload(4), terminating=True) == 0
    assert await push(client, changed, metrics=payload(), terminating=True) == ErrorCode.INVALID_REQUEST
    page = reported(await scrape(m))
    assert list(page["org_apache_kafka_producer_record_send_total"].values()) == [4]


@broker_test(**LISTENER, telemetry_max_bytes="2000")
async def test_pushes_that_are_refused(m: Machine) -> None:
    client = await named(m)
    found = await ask(client)

    async def last(**fields: Any) -> int:
        """Push as another client."""
        instance_id = m.broker.services.client_metrics.new_instance_id()
        other = await ask(client, instance_id)
        return await push(client, other, **fields)

    large = metrics_data(*(gauge(f"metric.{number}", number) for number in range(400))).SerializeToString()
    assert await push(client, found, client_instance_id=ZERO) == ErrorCode.INVALID_REQUEST
    assert await push(client, found, client_instance_id=bytes(15) + b"\1") == ErrorCode.INVALID_REQUEST
    assert await last(subscription_id=1) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert await last(compression_type=9, metrics=bytes(2001)) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert await last(metrics=bytes(2001)) == ErrorCode.TELEMETRY_TOO_LARGE
    assert await last(metrics=compress(ZSTD, large), compression_type=ZSTD) == ErrorCode.TELEMETRY_TOO_LARGE
    assert await last(metrics=b"\xff\xff") == ErrorCode.INVALID_RECORD
    assert await last(metrics=b"\xff\xff", compression_type=GZIP) == ErrorCode.INVALID_RECORD
    for codec in (NONE, GZIP, SNAPPY, LZ4, ZSTD):
        assert await last(metrics=compress(codec, payload()), compression_type=codec) == 0
    assert await last() == 0


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ({"match": "client_id=(a)\\1"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id"}, ErrorCode.INVALID_CONFIG),
        ({"match": "host=a"}, ErrorCode.INVALID_CONFIG),
        ({"interval_ms": "99"}, ErrorCode.INVALID_REQUEST),
        ({"interval_ms": "x"}, ErrorCode.INVALID_CONFIG),
        ({"unknown": "x"}, ErrorCode.INVALID_REQUEST),
    ],
)
@broker_test()
async def test_subscriptions_that_are_not_valid(m: Machine, configs: dict[str, str], code: int) -> None:
    assert await subscribe(await m.client(), "s", **configs) == code


@broker_test(**LISTENER, telemetry_max_bytes="2000")
async def test_the_outcomes_are_those_of_kafka(m: Machine) -> None:
    client = await m.client()
    outcomes: list[Any] = []
    steps, response = story(outcomes), None
    with suppress(StopIteration):
        while True:
            step = steps.send(response)
            if isinstance(step, float):
                response = await asyncio.sleep(step)
            else:
                response = await client.request(*step)
    assert outcomes == json.loads(RECORDED.read_text())

"""GetTelemetrySubscriptions (key 71) and PushTelemetry (key 72), version 0: metrics that clients report (KIP-714).

- They are advertised only if the broker has a metrics page (kbroker.metrics.listener), on which the metrics appear.
  Kafka advertises them only if it has a plugin that receives the metrics.
- Any broker responds. A client without an id gets one with the first response, and keeps it for all brokers.
- Counters are requested as totals, since those of a page are totals too. Kafka requests the change since the last push.
- INVALID_REQUEST, THROTTLING_QUOTA_EXCEEDED, UNKNOWN_SUBSCRIPTION_ID: see kbroker/telemetry/client_instances.py.
- UNSUPPORTED_COMPRESSION_TYPE, then TELEMETRY_TOO_LARGE for a push larger than telemetry.max.bytes, or than four times
  as much without compression. INVALID_RECORD for one that is not OTLP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.storage.metadata_files import encode_topic_id
from kbroker.telemetry.client_instances import COMPRESSION_TYPES, ClientInstance
from kbroker.telemetry.reported_metrics import decode_metrics, read_samples
from kbroker.telemetry.subscriptions import ClientAttributes
from protocol.apis import ApiKey
from protocol.errors import ErrorCode, MalformedError
from protocol.messages.k71_client_telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from protocol.records.compression import TooLargeError, decompress
from protocol.schema.primitives import ZERO_UUID

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

MAX_RATIO = 4
PAUSE_FACTOR = 4
# A push of 16 KiB may have thousands of samples.
RUNS_IN_TURNS = {ApiKey.PUSH_TELEMETRY}


def get_telemetry_subscriptions(
    services: Services, context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    manager, now_ms = services.client_metrics, services.environment.clock.mono_ms()
    instance_id = request.client_instance_id
    if instance_id == ZERO_UUID:
        instance_id = manager.new_instance_id()
    subscription = manager.check_get(instance_id, _attributes(context, instance_id), now_ms).subscription
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=subscription.id,
        accepted_compression_types=list(COMPRESSION_TYPES),
        push_interval_ms=subscription.push_interval_ms,
        telemetry_max_bytes=services.config.telemetry_max_bytes,
        requested_metrics=list(subscription.metrics),
    )


async def push_telemetry(
    services: Services, context: RequestContext, request: PushTelemetryRequest
) -> PushTelemetryResponse:
    attributes = _attributes(context, request.client_instance_id)
    instance = services.client_metrics.check_push(attributes, request, services.environment.clock.mono_ms())
    if len(request.metrics) > services.config.telemetry_max_bytes:
        raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE)
    if request.metrics:
        await _store_metrics(services, request, instance)
    return PushTelemetryResponse()


async def _store_metrics(services: Services, request: PushTelemetryRequest, instance: ClientInstance) -> None:
    manager = services.client_metrics
    # One push at a time: its message may take 20 MiB.
    async with manager.decoding:
        metrics = await _decode_metrics(services, request)
        samples, has_all = read_samples(metrics, instance.samples, manager.free_samples(instance))
        manager.cut_pushes += not has_all
        manager.replace_samples(request.client_instance_id, instance, samples)


async def _decode_metrics(services: Services, request: PushTelemetryRequest) -> MetricsData:
    environment, max_bytes = services.environment, MAX_RATIO * services.config.telemetry_max_bytes
    began_ms = environment.clock.mono_ms()
    try:
        return await environment.offload(_decode_blocking, request.compression_type, request.metrics, max_bytes)
    except TooLargeError:
        raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE) from None
    except MalformedError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
    finally:
        # The thread holds the GIL, for 5 ms in a megabyte: clients must not take most of the time with that.
        await environment.sleep(PAUSE_FACTOR * (environment.clock.mono_ms() - began_ms) / 1000)


def _decode_blocking(codec: int, data: bytes, max_bytes: int) -> MetricsData:
    """Return the metrics of a push. Raises MalformedError, TooLargeError."""
    return decode_metrics(bytes(decompress(codec, data, max_bytes)))


def _attributes(context: RequestContext, instance_id: bytes) -> ClientAttributes:
    host, _, port = context.peer.rpartition(":")
    return ClientAttributes(
        encode_topic_id(instance_id), context.client_id or "", *context.connection.client_software, host, port
    )


HANDLERS = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: get_telemetry_subscriptions, ApiKey.PUSH_TELEMETRY: push_telemetry}

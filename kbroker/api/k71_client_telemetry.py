"""GetTelemetrySubscriptions (key 71) and PushTelemetry (key 72), version 0: metrics that clients report (KIP-714).

- They are advertised only if the broker has a metrics page (kbroker.metrics.listener), on which the metrics appear.
  Kafka advertises them only if it has a plugin that receives the metrics.
- Any broker responds. A client without an id gets one with the first response, and keeps it for all brokers.
- Counters are requested as totals, since those of a page are totals too. Kafka requests the change since the last push.
- INVALID_REQUEST, THROTTLING_QUOTA_EXCEEDED, UNKNOWN_SUBSCRIPTION_ID: see kbroker/telemetry/client_instances.py.
- UNSUPPORTED_COMPRESSION_TYPE, then TELEMETRY_TOO_LARGE for a push larger than telemetry.max.bytes, or than four times
  as much without compression. INVALID_RECORD for one that is not OTLP.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError, uuid_text
from kbroker.telemetry.client_instances import COMPRESSION_TYPES, ClientInstance
from kbroker.telemetry.reported_metrics import read_samples
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

MAX_RATIO = 4
# Longer client ids are cut: they are labels of each sample, and patterns are matched with them.
MAX_ATTRIBUTE = 256
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
        await _store_metrics(services, context, request, instance)
    return PushTelemetryResponse()


async def _store_metrics(
    services: Services, context: RequestContext, request: PushTelemetryRequest, instance: ClientInstance
) -> None:
    manager, max_bytes = services.client_metrics, MAX_RATIO * services.config.telemetry_max_bytes
    held = 0
    try:
        data = await services.environment.offload(decompress, request.compression_type, request.metrics, max_bytes)
        held = len(data)
        context.connection.hold(held)
        samples, has_all = read_samples(data, instance.samples, manager.free_samples(instance))
    except TooLargeError:
        raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE) from None
    except MalformedError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"not valid OTLP metrics: {error}") from None
    finally:
        context.connection.hold(-held)
    manager.cut_pushes += not has_all
    manager.replace_samples(request.client_instance_id, instance, samples)


def _attributes(context: RequestContext, instance_id: bytes) -> ClientAttributes:
    host, _, port = context.peer.rpartition(":")
    software_name, software_version = context.connection.client_software
    client_id, name, version = (
        text[:MAX_ATTRIBUTE] for text in (context.client_id or "", software_name, software_version)
    )
    return ClientAttributes(uuid_text(instance_id), client_id, name, version, host, port)


HANDLERS = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: get_telemetry_subscriptions, ApiKey.PUSH_TELEMETRY: push_telemetry}

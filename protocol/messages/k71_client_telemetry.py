"""GetTelemetrySubscriptions, PushTelemetry: the metrics that clients report to brokers (KIP-714)."""

from protocol.schema.message import Message, row


class GetTelemetrySubscriptionsRequest(Message, key=71, kind="request", versions="0-0", flexible="0+"):
    client_instance_id: bytes = row("uuid", "0+")


class GetTelemetrySubscriptionsResponse(Message, key=71, kind="response", versions="0-0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    client_instance_id: bytes = row("uuid", "0+")
    subscription_id: int = row("int32", "0+")
    accepted_compression_types: list[int] = row(["int8"], "0+")
    push_interval_ms: int = row("int32", "0+")
    telemetry_max_bytes: int = row("int32", "0+")
    delta_temporality: bool = row("bool", "0+")
    requested_metrics: list[str] = row(["string"], "0+")


class PushTelemetryRequest(Message, key=72, kind="request", versions="0-0", flexible="0+"):
    client_instance_id: bytes = row("uuid", "0+")
    subscription_id: int = row("int32", "0+")
    terminating: bool = row("bool", "0+")
    compression_type: int = row("int8", "0+")
    metrics: bytes = row("bytes", "0+")


class PushTelemetryResponse(Message, key=72, kind="response", versions="0-0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")

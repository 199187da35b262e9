"""IncrementalAlterConfigs: set (0), delete (1), append (2), subtract (3) single configs (KIP-339)."""

from protocol.schema.message import Message, Struct, row


class AlterableConfig(Struct):
    name: str = row("string", "0+")
    config_operation: int = row("int8", "0+")
    value: str | None = row("string", "0+", nullable="0+")


class AlterConfigsResource(Struct):
    resource_type: int = row("int8", "0+")
    resource_name: str = row("string", "0+")
    configs: list[AlterableConfig] = row([AlterableConfig], "0+")


class IncrementalAlterConfigsRequest(Message, key=44, kind="request", versions="0-1", flexible="1+", costly=True):
    resources: list[AlterConfigsResource] = row([AlterConfigsResource], "0+")
    validate_only: bool = row("bool", "0+")


class AlterConfigsResourceResponse(Struct):
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
    resource_type: int = row("int8", "0+")
    resource_name: str = row("string", "0+")


class IncrementalAlterConfigsResponse(Message, key=44, kind="response", versions="0-1", flexible="1+"):
    throttle_time_ms: int = row("int32", "0+")
    responses: list[AlterConfigsResourceResponse] = row([AlterConfigsResourceResponse], "0+")

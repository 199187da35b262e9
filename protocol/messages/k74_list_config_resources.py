"""ListConfigResources: the names of resources that have configs.

0: client metrics subscriptions only, under the API's old name (KIP-714).
1: any resource type (KIP-1142).
"""

from protocol.schema.message import Message, Struct, row


class ListConfigResourcesRequest(Message, key=74, kind="request", versions="0-1", flexible="0+", costly=True):
    resource_types: list[int] = row(["int8"], "1+")


class ConfigResource(Struct):
    resource_name: str = row("string", "0+")
    resource_type: int = row("int8", "1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Message, key=74, kind="response", versions="0-1", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    config_resources: list[ConfigResource] = row([ConfigResource], "0+")

"""DescribeConfigs: the configs of topics, brokers, groups and other resources.

1: synonyms and sources.
3: types and documentation.
"""

from protocol.schema.message import Message, Struct, row


class DescribeConfigsResource(Struct):
    resource_type: int = row("int8", "0+")
    resource_name: str = row("string", "0+")
    configuration_keys: list[str] | None = row(["string"], "0+", nullable="0+")


class DescribeConfigsRequest(Message, key=32, kind="request", versions="1-4", flexible="4+", costly=True):
    resources: list[DescribeConfigsResource] = row([DescribeConfigsResource], "0+")
    include_synonyms: bool = row("bool", "1+")
    include_documentation: bool = row("bool", "3+")


class DescribeConfigsSynonym(Struct):
    name: str = row("string", "1+")
    value: str | None = row("string", "1+", nullable="0+")
    source: int = row("int8", "1+")


class DescribeConfigsResourceResult(Struct):
    name: str = row("string", "0+")
    value: str | None = row("string", "0+", nullable="0+")
    read_only: bool = row("bool", "0+")
    config_source: int = row("int8", "1+", default=-1, ignorable=True)
    is_sensitive: bool = row("bool", "0+")
    synonyms: list[DescribeConfigsSynonym] = row([DescribeConfigsSynonym], "1+", ignorable=True)
    config_type: int = row("int8", "3+", ignorable=True)
    documentation: str | None = row("string", "3+", nullable="0+", ignorable=True)


class DescribeConfigsResult(Struct):
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
    resource_type: int = row("int8", "0+")
    resource_name: str = row("string", "0+")
    configs: list[DescribeConfigsResourceResult] = row([DescribeConfigsResourceResult], "0+")


class DescribeConfigsResponse(Message, key=32, kind="response", versions="1-4", flexible="4+"):
    throttle_time_ms: int = row("int32", "0+")
    results: list[DescribeConfigsResult] = row([DescribeConfigsResult], "0+")

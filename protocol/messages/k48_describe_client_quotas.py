"""DescribeClientQuotas: the quotas of users, client ids and IP addresses (KIP-546)."""

from protocol.schema.message import Message, Struct, row


class ComponentData(Struct):
    entity_type: str = row("string", "0+")
    match_type: int = row("int8", "0+")
    match: str | None = row("string", "0+", nullable="0+")


class DescribeClientQuotasRequest(Message, key=48, kind="request", versions="0-1", flexible="1+", costly=True):
    components: list[ComponentData] = row([ComponentData], "0+")
    strict: bool = row("bool", "0+")


class EntityData(Struct):
    entity_type: str = row("string", "0+")
    entity_name: str | None = row("string", "0+", nullable="0+")


class ValueData(Struct):
    key: str = row("string", "0+")
    value: float = row("float64", "0+")


class EntryData(Struct):
    entity: list[EntityData] = row([EntityData], "0+")
    values: list[ValueData] = row([ValueData], "0+")


class DescribeClientQuotasResponse(Message, key=48, kind="response", versions="0-1", flexible="1+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
    entries: list[EntryData] | None = row([EntryData], "0+", nullable="0+")

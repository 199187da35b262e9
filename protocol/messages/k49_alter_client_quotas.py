"""AlterClientQuotas: set and remove quotas of users, client ids and IP addresses (KIP-546)."""

from protocol.messages.k48_describe_client_quotas import EntityData
from protocol.schema.message import Message, Struct, row


class OpData(Struct):
    key: str = row("string", "0+")
    value: float = row("float64", "0+")
    remove: bool = row("bool", "0+")


class EntryData(Struct):
    entity: list[EntityData] = row([EntityData], "0+")
    ops: list[OpData] = row([OpData], "0+")


class AlterClientQuotasRequest(Message, key=49, kind="request", versions="0-1", flexible="1+", costly=True):
    entries: list[EntryData] = row([EntryData], "0+")
    validate_only: bool = row("bool", "0+")


class EntryResult(Struct):
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
    entity: list[EntityData] = row([EntityData], "0+")


class AlterClientQuotasResponse(Message, key=49, kind="response", versions="0-1", flexible="1+"):
    throttle_time_ms: int = row("int32", "0+")
    entries: list[EntryResult] = row([EntryResult], "0+")

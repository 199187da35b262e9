"""Every API gets the longest strings that a request can have: what a response quotes of them still fits into it."""

from typing import Any

import pytest

from kbroker.common import MAX_MESSAGE_CHARACTERS, KafkaError
from protocol.apis import ALL_APIS, ApiKey
from protocol.errors import ErrorCode
from protocol.messages import message_classes
from protocol.schema.encoder_source import MAX_STRING
from protocol.schema.message import StructType
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers

# The others have no strings, or wait for members of a group, or have codecs of their own.
KEYS = (
    ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT, ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS, ApiKey.DELETE_RECORDS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DESCRIBE_CONFIGS,
    ApiKey.ALTER_CONFIGS, ApiKey.ALTER_REPLICA_LOG_DIRS, ApiKey.CREATE_PARTITIONS, ApiKey.ELECT_LEADERS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.UPDATE_FEATURES, ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.CREATE_REASSIGNMENT_PLAN,
)  # fmt: skip


def filled(cls: StructType, version: int) -> dict[str, Any]:
    """Return fields of which all strings are as long as possible, and all arrays have one element."""
    fields: dict[str, Any] = {}
    for name, row in cls.__rows__.items():
        if row.is_in(version) and row.tag < 0:
            is_array = isinstance(row.type, list)
            kind = row.type[0] if is_array else row.type
            if isinstance(kind, StructType):
                value: Any = kind(**filled(kind, version))
            elif kind == "string":
                value = "t" * MAX_STRING
            elif is_array:
                value = 1
            else:
                continue
            fields[name] = [value] if is_array else value
    return fields


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
@async_test
async def test_a_response_quotes_no_more_than_it_can_have(key: ApiKey):
    handlers = await start_handlers()
    request_class, _ = message_classes(key)
    version = ALL_APIS[key].max_version
    await handlers.request(key, version, **filled(request_class, version))


def test_a_long_message_is_cut():
    message = "ä" * MAX_MESSAGE_CHARACTERS
    assert KafkaError(ErrorCode.INVALID_REQUEST, message).message == message
    assert KafkaError(ErrorCode.INVALID_REQUEST, message + "b").message == message[:-1] + "…"

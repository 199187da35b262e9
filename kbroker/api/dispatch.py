"""The dispatch table: which file handles which API. `ls kbroker/api` is the list of what is supported."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from kbroker.api.context import ApiHandler, Body, RequestContext, Services
from kbroker.api.response_errors import (
    error_fields,
    report_errors,
    report_fetch_errors,
    report_no_errors,
    report_produce_errors,
)
from kbroker.runtime.metrics import RequestStats
from protocol.apis import APIS, ApiKey
from protocol.fast.fetch import FetchResponse, decode_fetch_request, encode_fetch_response
from protocol.fast.produce import decode_produce_request, encode_produce_response
from protocol.schema.codec import decoder, encode
from protocol.schema.message import Message

# The file name of each API, in kbroker/api and in protocol/messages.
STEMS: dict[ApiKey, str] = {
    ApiKey.PRODUCE: "k00_produce",
    ApiKey.FETCH: "k01_fetch",
    ApiKey.LIST_OFFSETS: "k02_list_offsets",
    ApiKey.METADATA: "k03_metadata",
    ApiKey.OFFSET_COMMIT: "k08_offset_commit",
    ApiKey.OFFSET_FETCH: "k09_offset_fetch",
    ApiKey.FIND_COORDINATOR: "k10_find_coordinator",
    ApiKey.JOIN_GROUP: "k11_join_group",
    ApiKey.HEARTBEAT: "k12_heartbeat",
    ApiKey.LEAVE_GROUP: "k13_leave_group",
    ApiKey.SYNC_GROUP: "k14_sync_group",
    ApiKey.DESCRIBE_GROUPS: "k15_describe_groups",
    ApiKey.LIST_GROUPS: "k16_list_groups",
    ApiKey.API_VERSIONS: "k18_api_versions",
    ApiKey.CREATE_TOPICS: "k19_create_topics",
    ApiKey.DELETE_TOPICS: "k20_delete_topics",
    ApiKey.DELETE_RECORDS: "k21_delete_records",
    ApiKey.INIT_PRODUCER_ID: "k22_init_producer_id",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "k23_offset_for_leader_epoch",
    ApiKey.ADD_PARTITIONS_TO_TXN: "k24_add_partitions_to_txn",
    ApiKey.ADD_OFFSETS_TO_TXN: "k25_add_offsets_to_txn",
    ApiKey.END_TXN: "k26_end_txn",
    ApiKey.WRITE_TXN_MARKERS: "k27_write_txn_markers",
    ApiKey.TXN_OFFSET_COMMIT: "k28_txn_offset_commit",
    ApiKey.DESCRIBE_ACLS: "k29_describe_acls",
    ApiKey.CREATE_ACLS: "k30_create_acls",
    ApiKey.DELETE_ACLS: "k31_delete_acls",
    ApiKey.DESCRIBE_CONFIGS: "k32_describe_configs",
    ApiKey.ALTER_CONFIGS: "k33_alter_configs",
    ApiKey.DESCRIBE_LOG_DIRS: "k35_describe_log_dirs",
    ApiKey.CREATE_PARTITIONS: "k37_create_partitions",
    ApiKey.DELETE_GROUPS: "k42_delete_groups",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "k44_incremental_alter_configs",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "k46_list_partition_reassignments",
    ApiKey.OFFSET_DELETE: "k47_offset_delete",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "k48_describe_client_quotas",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "k50_describe_user_scram_credentials",
    ApiKey.DESCRIBE_QUORUM: "k55_describe_quorum",
    ApiKey.UPDATE_FEATURES: "k57_update_features",
    ApiKey.DESCRIBE_CLUSTER: "k60_describe_cluster",
    ApiKey.DESCRIBE_PRODUCERS: "k61_describe_producers",
    ApiKey.DESCRIBE_TRANSACTIONS: "k65_describe_transactions",
    ApiKey.LIST_TRANSACTIONS: "k66_list_transactions",
    ApiKey.LIST_CONFIG_RESOURCES: "k74_list_config_resources",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "k75_describe_topic_partitions",
}


class UnsupportedRequest(Exception):
    """A request that gets no response: its connection is closed, as Kafka does, and the reason is logged."""

    def __init__(self, reason: str, api_key: int, version: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.api_key = api_key
        self.version = version


# ApiVersions lists Produce 0-2, without which librdkafka does not compress, but such a request closes the connection
# like one of an unknown version, as with Kafka 4.3.1.
FIRST_SUPPORTED_VERSION = {ApiKey.PRODUCE: 3}


class Dispatch:
    """Finds the handler of an API version. Handlers are imported at the first request of each version."""

    def __init__(self) -> None:
        self._handlers: dict[tuple[int, int], ApiHandler] = {}
        self._unsupported_api_versions = _unsupported_api_versions()

    def find(self, api_key: int, version: int) -> ApiHandler:
        """Raises UnsupportedRequest."""
        return self._handlers.get((api_key, version)) or self._load(api_key, version)

    def _load(self, api_key: int, version: int) -> ApiHandler:
        api = APIS.get(api_key)
        if api is None:
            raise UnsupportedRequest("API not served", api_key, version)
        key = ApiKey(api_key)
        if not FIRST_SUPPORTED_VERSION.get(key, api.min_version) <= version <= api.max_version:
            if key is ApiKey.API_VERSIONS:
                return self._unsupported_api_versions
            raise UnsupportedRequest("version not served", api_key, version)
        handler = self._handlers[api_key, version] = load_handler(key, version)
        return handler

    def stats(self) -> list[RequestStats]:
        """The statistics of every API version that has been requested."""
        return [self._unsupported_api_versions.stats, *(handler.stats for handler in self._handlers.values())]


class Codec(NamedTuple):
    """The part of an ApiHandler that follows from the messages of an API."""

    decode: Callable[[memoryview, int, int], Any]
    encode: Callable[[Any, int], Body]
    response_type: type
    report_errors: Callable[[RequestContext, Any, Any], None]


FAST_CODECS = {
    ApiKey.PRODUCE: Codec(decode_produce_request, encode_produce_response, list, report_produce_errors),
    ApiKey.FETCH: Codec(decode_fetch_request, encode_fetch_response, FetchResponse, report_fetch_errors),
}


def load_handler(key: ApiKey, version: int) -> ApiHandler:
    """Import the handler of an API, with the codec of one version."""
    is_flexible = version >= APIS[key].flexible_from
    codec = FAST_CODECS.get(key) or message_codec(key, version)
    return ApiHandler(
        decode=codec.decode,
        handle=import_module(f"kbroker.api.{STEMS[key]}").handle,
        encode=codec.encode,
        report_errors=codec.report_errors,
        response_type=codec.response_type,
        stats=RequestStats(key, version),
        is_flexible=is_flexible,
        has_flexible_response_header=is_flexible and key is not ApiKey.API_VERSIONS,
        overlaps=key is ApiKey.PRODUCE,
    )


def message_codec(key: ApiKey, version: int) -> Codec:
    """The codec of an API whose messages are declared as rows."""
    request_class, response_class = message_classes(key)
    decode = decoder(request_class, version)
    fields = error_fields(response_class)
    report = report_no_errors if fields is None else partial(report_errors, fields)
    return Codec(lambda frame, pos, version: decode(frame, pos)[0], encode, response_class, report)


def message_classes(key: ApiKey) -> tuple[type[Message], type[Message]]:
    """The (request, response) classes that protocol/messages declares for an API."""
    module = import_module(f"protocol.messages.{STEMS[key]}")
    name = APIS[key].name
    return getattr(module, f"{name}Request"), getattr(module, f"{name}Response")


def _unsupported_api_versions() -> ApiHandler:
    """ApiVersions in an unknown version: the response has version 0 whatever was requested (KIP-511)."""

    def handle(services: Services, context: RequestContext, request: None) -> Message:
        response: Message = import_module("kbroker.api.k18_api_versions").unsupported()
        return response

    fields = error_fields(message_classes(ApiKey.API_VERSIONS)[1])
    assert fields is not None
    return ApiHandler(
        decode=lambda frame, pos, version: None,
        handle=handle,
        encode=lambda response, version: encode(response, 0),
        report_errors=partial(report_errors, fields),
        response_type=Message,
        stats=RequestStats(ApiKey.API_VERSIONS, 0),
        is_flexible=False,
        has_flexible_response_header=False,
        overlaps=False,
    )

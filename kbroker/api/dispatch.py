"""The dispatch table: which file answers which API. `ls kbroker/api` is the list of what is supported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from inspect import isawaitable
from typing import Any, NamedTuple

from kbroker.api.context import Body, Pending, RequestContext, Services
from kbroker.api.response_errors import note, plan_of
from kbroker.runtime.metrics import RequestStats
from protocol.apis import APIS, ApiKey
from protocol.errors import ErrorCode
from protocol.fast.primitives import skip_tags
from protocol.schema.message import Message, decoder, encode

Served = Body | Pending | Awaitable[Body | Pending | None] | None
Serve = Callable[[Services, RequestContext, memoryview, int], Served]

# The handlers' and messages' file names: one stem in kbroker/api and in protocol/messages.
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


class UnservedRequest(Exception):
    """A frame that gets no answer: its connection is closed, as Kafka does, and the reason is logged."""

    def __init__(self, reason: str, api_key: int, version: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.api_key = api_key
        self.version = version


class ApiHandler(NamedTuple):
    """One API in one version. `overlaps`: further requests may be served while this one waits (Produce)."""

    serve: Serve
    flexible: bool
    tagged_response_header: bool
    overlaps: bool
    stats: RequestStats


# Produce 0-2 are advertised because librdkafka will not compress without them, and refused like any other version
# that does not exist: Kafka closes the connection (seen with 4.3.1).
FIRST_SERVED_VERSION = {ApiKey.PRODUCE: 3}


class Dispatch:
    """Finds the entry of an API in a version. Handlers are bound at the first request of each version."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], ApiHandler] = {}
        self._unsupported = RequestStats(ApiKey.API_VERSIONS, 0)
        self.skip_tags = skip_tags

    def find(self, api_key: int, version: int) -> ApiHandler:
        """Raises Refused for what gets no answer."""
        return self._entries.get((api_key, version)) or self._bind(api_key, version)

    def _bind(self, api_key: int, version: int) -> ApiHandler:
        api = APIS.get(api_key)
        if api is None:
            raise UnservedRequest("API not served", api_key, version)
        key = ApiKey(api_key)
        if not FIRST_SERVED_VERSION.get(key, api.min) <= version <= api.max:
            if key is ApiKey.API_VERSIONS:
                # Answered in version 0, whatever was asked (KIP-511); the body is not looked at.
                return ApiHandler(_unsupported_api_versions, False, False, False, self._unsupported)
            raise UnservedRequest("version not served", api_key, version)
        module = import_module(f"kbroker.api.{STEMS[key]}")
        flexible = version >= api.flexible_from
        serve = module.serve if hasattr(module, "serve") else message_server(key, version, module.handle)
        tagged = flexible and key is not ApiKey.API_VERSIONS
        entry = ApiHandler(serve, flexible, tagged, key is ApiKey.PRODUCE, RequestStats(api_key, version))
        self._entries[api_key, version] = entry
        return entry

    def stats(self) -> list[RequestStats]:
        """Of every API and version that has been asked for."""
        return [self._unsupported, *(entry.stats for entry in self._entries.values())]


def message_classes(key: ApiKey) -> tuple[type[Message], type[Message]]:
    """The (request, response) classes that protocol/messages declares for an API."""
    module = import_module(f"protocol.messages.{STEMS[key]}")
    name = APIS[key].name
    return getattr(module, f"{name}Request"), getattr(module, f"{name}Response")


def message_server(key: ApiKey, version: int, handle: Callable[[Services, RequestContext, Any], Any]) -> Serve:
    """Wrap a handler of typed messages: decode, handle, encode."""
    request_class, response_class = message_classes(key)
    decode = decoder(request_class, version)
    plan = plan_of(response_class)

    def serve(services: Services, context: RequestContext, frame: memoryview, pos: int) -> Served:
        request, _ = decode(frame, pos)
        response = handle(services, context, request)
        if isawaitable(response):
            return finish_later(context, request, response)
        if plan is not None:
            note(context, plan, request, response)
        return encode(response, version)

    async def finish_later(context: RequestContext, request: Message, response: Awaitable[Message]) -> Body:
        answer = await response
        if plan is not None:
            note(context, plan, request, answer)
        return encode(answer, version)

    return serve


def _unsupported_api_versions(services: Services, context: RequestContext, frame: memoryview, pos: int) -> Served:
    context.refused(ErrorCode.UNSUPPORTED_VERSION)
    module = import_module("kbroker.api.k18_api_versions")
    return encode(module.unsupported(), 0)

"""What the logs say of changes: who has changed what. Denials are found in responses (response_errors.py).

`auditing` wraps the handlers of APIs that change something, where they are handled: a forwarded request on the
controller, with the client's principal and address. CHANGES says what such a request has changed; configs have their
names only, since values may be secret.

Not recorded is what consumers and applications do all the time: OffsetCommit, even without a member, which resets the
offsets of a group, but is also each commit of a consumer that has assigned its partitions itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kbroker.api.authorization import after
from kbroker.api.context import Handle, RequestContext, Services, sender
from kbroker.authorization.acl import Operation, PatternType, PermissionType, ResourceType, numbered
from kbroker.config.alter import OpType
from kbroker.config.config_def import ConfigResourceType
from kbroker.runtime.audit_log import record_changes
from protocol.apis import ApiKey

# The changed thing and what has changed, of each change without an error.
Changes = Callable[[Any, Any], Iterator[tuple[str, str]]]


def auditing(key: ApiKey, handle: Handle) -> Handle:
    """Return the handler that records the changes of an API; `handle` itself if the API changes nothing."""
    changes = CHANGES.get(key)
    if changes is None:
        return handle

    level = logging.DEBUG if key in ROUTINE else logging.INFO

    def handle_and_record(services: Services, context: RequestContext, request: Any) -> Any:
        response = handle(services, context, request)
        if key is ApiKey.WRITE_TXN_MARKERS and context.peer_broker is not None:
            # A coordinator ends a transaction of its client.
            return response

        def record(complete: Any) -> Any:
            if not getattr(request, "validate_only", False) and not getattr(complete, "error_code", 0):
                record_changes(services.audit, sender(context), changes(request, complete), level)
            return complete

        return after(response, record)

    return handle_and_record


def _each(elements: str, resource: str, change: str) -> Changes:
    """Return a function for changes that are elements `e` of the response to `r`. The texts have fields of these."""

    def changes(request: Any, response: Any) -> Iterator[tuple[str, str]]:
        for e in getattr(response, elements):
            if not e.error_code:
                yield resource.format(e=e, r=request), change.format(e=e, r=request)

    return changes


def _each_partition(topics: str, name: str, partitions: str, resource: str, change: str) -> Changes:
    """Like `_each` for the partitions `p` of the topic `t`; `r` is the request."""

    def changes(request: Any, response: Any) -> Iterator[tuple[str, str]]:
        for topic in getattr(response, topics):
            for p in getattr(topic, partitions):
                if not p.error_code:
                    fields = {"t": getattr(topic, name), "p": p, "r": request}
                    yield resource.format(**fields), change.format(**fields)

    return changes


def _once(resource: str, change: str) -> Changes:
    """Like `_each` for a request `r` with one change; `a` is the response."""
    return lambda r, a: iter([(resource.format(r=r, a=a), change.format(r=r, a=a))])


def _altered_configs(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    altered = {(each.resource_type, each.resource_name) for each in response.responses if not each.error_code}
    for resource in request.resources:
        if (resource.resource_type, resource.resource_name) in altered:
            kind = ConfigResourceType(resource.resource_type)
            # A broker's configs may be passwords.
            texts = [_altered_config(each, kind is not ConfigResourceType.BROKER) for each in resource.configs]
            yield f"{kind.name}:{resource.resource_name}", ", ".join(texts)


def _altered_config(config: Any, has_value: bool) -> str:
    operation = getattr(config, "config_operation", 0)
    if config.value is None or operation == OpType.DELETE:
        return f"{config.name} deleted"
    sign = "+=" if operation == OpType.APPEND else "-=" if operation == OpType.SUBTRACT else "="
    return f"{config.name}{sign}{config.value}" if has_value else f"{config.name} set"


def _altered_users(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    deleted = {each.name for each in request.deletions}
    for user in response.results:
        if not user.error_code:
            yield f"USER:{user.user}", "SCRAM credentials " + ("deleted" if user.user in deleted else "set")


def _altered_quotas(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    for entry, result in zip(request.entries, response.entries, strict=False):
        if not result.error_code:
            entity = ",".join(f"{each.entity_type}={each.entity_name or '<default>'}" for each in entry.entity)
            operations = (
                f"{each.key} deleted" if each.remove else f"{each.key}={each.value:.15g}" for each in entry.ops
            )
            yield f"QUOTA:{entity}", ", ".join(operations)


def _created_acls(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    for acl, result in zip(request.creations, response.results, strict=False):
        if not result.error_code:
            yield _acl(acl, acl.resource_pattern_type), f"ACL created: {_right(acl)}"


def _deleted_acls(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    for acl in (each for result in response.filter_results for each in result.matching_acls):
        if not acl.error_code:
            yield _acl(acl, acl.pattern_type), f"ACL deleted: {_right(acl)}"


def _acl(acl: Any, pattern_type: int) -> str:
    suffix = "*" if pattern_type == PatternType.PREFIXED else ""
    return f"{numbered(ResourceType, acl.resource_type).name}:{acl.resource_name}{suffix}"


def _right(acl: Any) -> str:
    permission, operation = numbered(PermissionType, acl.permission_type), numbered(Operation, acl.operation)
    return f"{permission.name} {operation.name} to {acl.principal} from {acl.host}"


def _removed_partitions(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    # -1 changes nothing.
    if request.partition_count >= 0:
        yield f"TOPIC:{request.topic_name}", f"partitions removed: {request.partition_count} remain"


def _ended_transactions(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    for marker, result in zip(request.markers, response.markers, strict=False):
        end = "committed" if marker.transaction_result else "aborted"
        for topic in result.topics:
            for p in topic.partitions:
                if not p.error_code:
                    change = f"transaction of producer {marker.producer_id} in partition {p.partition_index} {end}"
                    yield f"TOPIC:{topic.name}", change


# An operation of DelayedRecords; 2 delivers.
_CANCEL = 1


def _delayed_records(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    count = sum(not each.error_code for each in response.results)
    if count:
        end = "cancelled" if request.operation == _CANCEL else "delivered early"
        yield f"TOPIC:{request.topic_name}", f"{count} delayed records of partition {request.partition_index} {end}"


# Programs send these all the time: Kafka Streams deletes the records of its internal topics.
ROUTINE = (ApiKey.DELETE_RECORDS,)
CHANGES: Mapping[ApiKey, Changes] = {
    ApiKey.CREATE_TOPICS: _each("topics", "TOPIC:{e.name}", "created with {e.num_partitions} partitions"),
    ApiKey.DELETE_TOPICS: _each("responses", "TOPIC:{e.name}", "deleted"),
    ApiKey.CREATE_PARTITIONS: _each("results", "TOPIC:{e.name}", "partitions added"),
    ApiKey.DELETE_RECORDS: _each_partition(
        "topics", "name", "partitions", "TOPIC:{t}", "records of partition {p.partition_index} deleted"
    ),
    ApiKey.ALTER_CONFIGS: _altered_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _altered_configs,
    ApiKey.CREATE_ACLS: _created_acls,
    ApiKey.DELETE_ACLS: _deleted_acls,
    ApiKey.ALTER_CLIENT_QUOTAS: _altered_quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _altered_users,
    ApiKey.DELETE_GROUPS: _each("results", "GROUP:{e.group_id}", "deleted"),
    ApiKey.OFFSET_DELETE: _each_partition(
        "topics", "name", "partitions", "GROUP:{r.group_id}", "offset of {t}-{p.partition_index} deleted"
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _each_partition(
        "responses", "topic_name", "partitions", "GROUP:{r.group_id}", "start offset of {t}-{p.partition_index} set"
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _each("responses", "GROUP:{r.group_id}", "offsets of {e.topic_name} deleted"),
    ApiKey.WRITE_TXN_MARKERS: _ended_transactions,
    ApiKey.DELAYED_RECORDS: _delayed_records,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _each_partition(
        "responses", "name", "partitions", "TOPIC:{t}", "reassignment of partition {p.partition_index}"
    ),
    ApiKey.ELECT_LEADERS: _each_partition(
        "replica_election_results", "topic", "partition_result", "TOPIC:{t}", "election for partition {p.partition_id}"
    ),
    ApiKey.UPDATE_FEATURES: _once("CLUSTER:features", "updated"),
    ApiKey.UNREGISTER_BROKER: _once("BROKER:{r.broker_id}", "unregistered"),
    ApiKey.CREATE_REASSIGNMENT_PLAN: _once("PLAN:{a.plan_id}", "created"),
    ApiKey.CANCEL_REASSIGNMENT_PLAN: _once("PLAN:{r.plan_id}", "cancelled"),
    ApiKey.REMOVE_PARTITIONS: _removed_partitions,
}

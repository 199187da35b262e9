"""What the audit log says of changes: who has changed what. Denials are found in responses (response_errors.py).

`auditing` wraps the handlers of APIs that change something, where they are handled: a forwarded request on the
controller, with the client's principal and address. CHANGES says what such a request has changed; configs have their
names only, since values may be secret.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from kbroker.api.context import Handle, RequestContext, Services, sender
from kbroker.common import uuid_text
from kbroker.config.config_def import ConfigResourceType
from protocol.apis import ApiKey

# The changed thing and what has changed, of each change without an error.
Changes = Callable[[Any, Any], Iterator[tuple[str, str]]]


def auditing(key: ApiKey, handle: Handle) -> Handle:
    """Return the handler that records the changes of an API; `handle` itself if the API changes nothing."""
    changes = CHANGES.get(key)
    if changes is None:
        return handle

    def handle_and_record(services: Services, context: RequestContext, request: Any) -> Any:
        response = handle(services, context, request)
        if services.audit is None:
            return response
        if isinstance(response, Awaitable):
            return _record_later(services, context, request, response, changes)
        _record(services, context, request, response, changes)
        return response

    return handle_and_record


async def _record_later(
    services: Services, context: RequestContext, request: Any, response: Awaitable[Any], changes: Changes
) -> Any:
    complete = await response
    _record(services, context, request, complete, changes)
    return complete


def _record(services: Services, context: RequestContext, request: Any, response: Any, changes: Changes) -> None:
    assert services.audit is not None
    if getattr(request, "validate_only", False) or getattr(response, "error_code", 0):
        return
    for resource, change in changes(request, response):
        services.audit.record("changed", **sender(context), resource=resource, change=change or None)


def _has_changed(element: Any) -> bool:
    return bool(element.error_code == 0)


def _created_topics(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    for topic in filter(_has_changed, response.topics):
        counts = f" with {topic.num_partitions} partitions" if topic.num_partitions > 0 else ""
        yield f"TOPIC:{topic.name}", f"created{counts}"


def _deleted_topics(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    for topic in filter(_has_changed, response.responses):
        yield f"TOPIC:{topic.name or uuid_text(topic.topic_id)}", "deleted"


def _partition_counts(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    counts = {topic.name: topic.count for topic in request.topics}
    for topic in filter(_has_changed, response.results):
        yield f"TOPIC:{topic.name}", f"{counts.get(topic.name)} partitions"


def _deleted_records(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    for topic in response.topics:
        for partition in filter(_has_changed, topic.partitions):
            resource = f"TOPIC:{topic.name}"
            yield resource, f"records of partition {partition.partition_index} deleted below {partition.low_watermark}"


def _altered_configs(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    altered = {(each.resource_type, each.resource_name) for each in response.responses if each.error_code == 0}
    for resource in request.resources:
        if (resource.resource_type, resource.resource_name) in altered:
            kind = ConfigResourceType(resource.resource_type)
            # A broker's configs may be passwords.
            has_values = kind is not ConfigResourceType.BROKER
            texts = [_altered_config(config, has_values) for config in resource.configs]
            yield f"{kind.name}:{resource.resource_name}", ", ".join(texts)


def _altered_config(config: Any, has_values: bool) -> str:
    if config.value is None:
        return f"{config.name} deleted"
    sign = ("=", " deleted", "+=", "-=")[getattr(config, "config_operation", 0)]
    return f"{config.name}{sign}{config.value}" if has_values else f"{config.name} set"


def _altered_users(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    deleted = {each.name for each in request.deletions}
    for user in filter(_has_changed, response.results):
        yield f"USER:{user.user}", "SCRAM credentials " + ("deleted" if user.user in deleted else "set")


def _altered_quotas(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    for entry, result in zip(request.entries, response.entries, strict=False):
        if result.error_code == 0:
            entity = ",".join(f"{each.entity_type}={each.entity_name or '<default>'}" for each in entry.entity)
            operations = (f"{each.key} deleted" if each.remove else f"{each.key}={each.value:g}" for each in entry.ops)
            yield f"QUOTA:{entity}", ", ".join(operations)


def _deleted_groups(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    for group in filter(_has_changed, response.results):
        yield f"GROUP:{group.group_id}", "deleted"


def _deleted_offsets(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    for topic in response.topics:
        for partition in filter(_has_changed, topic.partitions):
            yield f"GROUP:{request.group_id}", f"offset of {topic.name}-{partition.partition_index} deleted"


def _reassignments(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    replicas = {
        (topic.name, partition.partition_index): partition.replicas
        for topic in request.topics
        for partition in topic.partitions
    }
    for topic in response.responses:
        for partition in filter(_has_changed, topic.partitions):
            target = replicas.get((topic.name, partition.partition_index))
            move = "reassignment cancelled" if target is None else f"reassigned to {target}"
            yield f"TOPIC:{topic.name}", f"partition {partition.partition_index} {move}"


def _elections(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    for topic in response.replica_election_results:
        for partition in filter(_has_changed, topic.partition_result):
            yield f"TOPIC:{topic.topic}", f"a leader of partition {partition.partition_id} elected"


def _features(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    failed = {each.feature for each in response.results if each.error_code}
    for update in request.feature_updates:
        if update.feature not in failed:
            yield f"FEATURE:{update.feature}", f"level {update.max_version_level}"


def _removed_partitions(request: Any, response: Any) -> Iterator[tuple[str, str]]:
    if request.partition_count >= 0:
        yield f"TOPIC:{request.topic_name}", f"partitions removed: {request.partition_count} remain"


CHANGES: Mapping[ApiKey, Changes] = {
    ApiKey.CREATE_TOPICS: _created_topics,
    ApiKey.DELETE_TOPICS: _deleted_topics,
    ApiKey.DELETE_RECORDS: _deleted_records,
    ApiKey.ALTER_CONFIGS: _altered_configs,
    ApiKey.CREATE_PARTITIONS: _partition_counts,
    ApiKey.DELETE_GROUPS: _deleted_groups,
    ApiKey.ELECT_LEADERS: _elections,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _altered_configs,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassignments,
    ApiKey.OFFSET_DELETE: _deleted_offsets,
    ApiKey.ALTER_CLIENT_QUOTAS: _altered_quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _altered_users,
    ApiKey.UPDATE_FEATURES: _features,
    ApiKey.UNREGISTER_BROKER: lambda request, response: iter([(f"BROKER:{request.broker_id}", "unregistered")]),
    ApiKey.CREATE_REASSIGNMENT_PLAN: lambda request, response: iter([(f"PLAN:{response.plan_id}", "created")]),
    ApiKey.CANCEL_REASSIGNMENT_PLAN: lambda request, response: iter([(f"PLAN:{request.plan_id}", "cancelled")]),
    ApiKey.REMOVE_PARTITIONS: _removed_partitions,
}

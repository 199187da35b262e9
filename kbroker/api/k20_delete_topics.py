"""DeleteTopics (key 20), versions 1 to 6: delete topics by name or by id.

- Version 6 identifies topics by name or by id; its response has both.
- A topic that is named more than once is not deleted.
- A client without the right to delete a topic learns whether it exists only if it may describe it.
- From version 5 on topics beyond the quota of the client get THROTTLING_QUOTA_EXCEEDED (KIP-599).
- The response is sent when the topics are deleted from the metadata, and from this broker's data directory. timeout_ms
  is ignored: this takes no longer than a write to the coordination service.
"""

from collections import Counter
from typing import Any

from kbroker.api.authorization import DEFAULT_TEXT, Request, allows_on_cluster, each, refusal
from kbroker.api.context import Handle, RequestContext, Services, mutation_quota
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.common import KafkaError
from kbroker.metadata.topics.topic_names import ZERO_UUID
from kbroker.metadata.topics.topic_requests import TopicDeletion, TopicNameOrId
from kbroker.runtime.turns import drained, paced, release
from protocol.errors import ErrorCode
from protocol.messages.k20_delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

FORWARDED = True
FIRST_WITH_STRICT_QUOTA = 5
FIRST_WITH_TOPIC_IDS = 6


async def handle(services: Services, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    if not services.config.delete_topic_enable:
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
    requested = _requested(context.version, request)
    quota = mutation_quota(services, context, FIRST_WITH_STRICT_QUOTA)
    deletions = await services.controller.topics.delete_topics(requested, quota)
    release(requested)
    deleted = [deletion.name for deletion in paced(deletions) if deletion.error is None and deletion.name is not None]
    services.auto_topic_creation.record_deletions(deleted)
    results = [_result(deletion) for deletion in drained(deletions)]
    return DeleteTopicsResponse(throttle_time_ms=quota.throttle_ms, responses=results)


def authorize(checked: Request, handle: Handle) -> Any:
    services, context, access, request = checked
    if allows_on_cluster(access, Operation.DELETE) or not services.config.delete_topic_enable:
        return handle(services, context, request)
    times_named = Counter((topic.name, topic.topic_id) for topic in paced(_requested(context.version, request)))

    def refuse(_: Request, topic: str | DeleteTopicState) -> KafkaError | None:
        name, topic_id = (topic, ZERO_UUID) if isinstance(topic, str) else (topic.name, topic.topic_id)
        if times_named[name, topic_id] > 1 or (name is None) is (topic_id == ZERO_UUID):
            return None  # invalid, so it is not deleted
        found = name if name is not None else services.metadata.topic_name(topic_id)
        if found is None or access.allows(Operation.DELETE, ResourceType.TOPIC, found):
            return None
        if access.allows(Operation.DESCRIBE, ResourceType.TOPIC, found):
            if found not in services.metadata.topics:
                return None
            if not isinstance(topic, str):
                topic.name = found
        return refusal(ResourceType.TOPIC, DEFAULT_TEXT)

    elements = "topics" if context.version >= FIRST_WITH_TOPIC_IDS else "topic_names"
    return each(elements, refuse)(checked, handle)


def failed_response(context: RequestContext, request: DeleteTopicsRequest, error: KafkaError) -> DeleteTopicsResponse:
    requested = _requested(context.version, request)
    deletions = (TopicDeletion(topic.name, topic.topic_id, error) for topic in paced(requested))
    return DeleteTopicsResponse(responses=[_result(deletion) for deletion in deletions])


def _requested(version: int, request: DeleteTopicsRequest) -> list[TopicNameOrId]:
    if version >= FIRST_WITH_TOPIC_IDS:
        return [TopicNameOrId(topic.name, topic.topic_id) for topic in paced(request.topics)]
    return [TopicNameOrId(name) for name in paced(request.topic_names)]


def _result(deletion: TopicDeletion) -> DeletableTopicResult:
    error = deletion.error
    return DeletableTopicResult(
        name=deletion.name,
        topic_id=deletion.topic_id,
        error_code=error.code if error else ErrorCode.NONE,
        error_message=error.message if error else None,
    )

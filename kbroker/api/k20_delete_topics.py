"""DeleteTopics (key 20), versions 1 to 6: delete topics by name or by id.

- Version 6 identifies topics by name or by id; its response has both.
- A topic that is named more than once is not deleted.
- From version 5 on topics beyond the quota of the client get THROTTLING_QUOTA_EXCEEDED (KIP-599).
- The response is sent when the topics are deleted from the metadata, and from this broker's data directory. timeout_ms
  is ignored: this takes no longer than a write to the coordination service.
"""

from kbroker.api.context import RequestContext, Services, mutation_quota
from kbroker.common import KafkaError
from kbroker.metadata.topics.topic_requests import TopicDeletion, TopicNameOrId
from kbroker.runtime.turns import drained, paced, release
from protocol.errors import ErrorCode
from protocol.messages.k20_delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse

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
    results = [_result(deletion) for deletion in drained(deletions)]
    return DeleteTopicsResponse(throttle_time_ms=quota.throttle_ms, responses=results)


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

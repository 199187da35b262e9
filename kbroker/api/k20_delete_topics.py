"""DeleteTopics (key 20), versions 1 to 6: delete topics by name or by id.

- Version 6 identifies topics by name or by id; its response has both.
- A topic that is named more than once is not deleted.
- The response is sent when the topics are deleted from the metadata, and from this broker's data directory. timeout_ms
  is ignored: this takes no longer than a write to the coordination service.
"""

from functools import partial

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.topics.delete_topics import TopicDeletion, TopicNameOrId
from kbroker.runtime.slices import drained, each, in_slices, release
from protocol.errors import ErrorCode
from protocol.messages.k20_delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

FIRST_WITH_TOPIC_IDS = 6


async def handle(services: Services, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    slices = context.slices
    if context.version >= FIRST_WITH_TOPIC_IDS:
        requested = await in_slices(slices, each(_name_or_id, request.topics))
    else:
        requested = await in_slices(slices, each(TopicNameOrId, request.topic_names))
    if services.config.delete_topic_enable:
        deletions = await services.controller.topics.delete_topics(requested, slices)
        await in_slices(slices, release(requested))
    else:
        disabled = KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
        deletions = await in_slices(slices, each(partial(_with_error, disabled), requested))
    return DeleteTopicsResponse(responses=await in_slices(slices, each(_result, drained(deletions))))


def _name_or_id(topic: DeleteTopicState) -> TopicNameOrId:
    return TopicNameOrId(topic.name, topic.topic_id)


def _with_error(error: KafkaError, topic: TopicNameOrId) -> TopicDeletion:
    return TopicDeletion(topic.name, topic.topic_id, error)


def _result(deletion: TopicDeletion) -> DeletableTopicResult:
    error = deletion.error
    return DeletableTopicResult(
        name=deletion.name,
        topic_id=deletion.topic_id,
        error_code=error.code if error else ErrorCode.NONE,
        error_message=error.message if error else None,
    )

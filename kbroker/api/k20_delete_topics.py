"""DeleteTopics (key 20), versions 1 to 6.

- Version 6 names topics by name or by id, and answers with both.
- A topic that is named twice in any way is refused and kept.
- The answer comes when the topics are gone from the metadata and their logs from this broker; `timeout_ms`
is not
  looked at, for that takes no longer than a write to the coordination service.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.topics.delete_topics import TopicDeletion, TopicNameOrId
from protocol.errors import ErrorCode
from protocol.messages.k20_delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

FIRST_BY_ID = 6


async def handle(services: Services, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    if context.version >= FIRST_BY_ID:
        refs = [TopicNameOrId(topic.name, topic.topic_id) for topic in request.topics]
    else:
        refs = [TopicNameOrId(name) for name in request.topic_names]
    if services.config.delete_topic_enable:
        answers = await services.controller.delete_topics(refs)
    else:
        disabled = KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
        answers = [TopicDeletion(ref.name, ref.topic_id, disabled) for ref in refs]
    return DeleteTopicsResponse(responses=[_result(answer) for answer in answers])


def _result(answer: TopicDeletion) -> DeletableTopicResult:
    error = answer.error
    return DeletableTopicResult(
        name=answer.name,
        topic_id=answer.topic_id,
        error_code=error.code if error else ErrorCode.NONE,
        error_message=error.message if error else None,
    )

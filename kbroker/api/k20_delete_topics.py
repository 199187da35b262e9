"""DeleteTopics (key 20), versions 1 to 6: delete topics by name or by id.

- Version 6 identifies topics by name or by id; its response has both.
- A topic that is named more than once is not deleted.
- The response is sent when the topics are deleted from the metadata, and from this broker's data directory. timeout_ms
  is ignored: this takes no longer than a write to the coordination service.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.topics.topic_requests import TopicDeletion, TopicNameOrId
from kbroker.runtime.turns import drained, paced, release
from protocol.errors import ErrorCode
from protocol.messages.k20_delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse

FIRST_WITH_TOPIC_IDS = 6


async def handle(services: Services, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    if context.version >= FIRST_WITH_TOPIC_IDS:
        requested = [TopicNameOrId(topic.name, topic.topic_id) for topic in paced(request.topics)]
    else:
        requested = [TopicNameOrId(name) for name in paced(request.topic_names)]
    if services.config.delete_topic_enable:
        deletions = await services.controller.topics.delete_topics(requested)
        release(requested)
    else:
        disabled = KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
        deletions = [TopicDeletion(topic.name, topic.topic_id, disabled) for topic in paced(requested)]
    return DeleteTopicsResponse(responses=[_result(deletion) for deletion in drained(deletions)])


def _result(deletion: TopicDeletion) -> DeletableTopicResult:
    error = deletion.error
    return DeletableTopicResult(
        name=deletion.name,
        topic_id=deletion.topic_id,
        error_code=error.code if error else ErrorCode.NONE,
        error_message=error.message if error else None,
    )

"""DeleteTopics: delete topics by name, or by id from version 6 on.

5: error message; the error THROTTLING_QUOTA_EXCEEDED.
"""

from protocol.schema.message import Message, Struct, row


class DeleteTopicState(Struct):
    name: str | None = row("string", "6+", nullable="6+", default=None)
    topic_id: bytes = row("uuid", "6+")


class DeleteTopicsRequest(Message, key=20, kind="request", versions="1-6", flexible="4+"):
    topics: list[DeleteTopicState] = row([DeleteTopicState], "6+")
    topic_names: list[str] = row(["string"], "0-5", ignorable=True)
    timeout_ms: int = row("int32", "0+")


class DeletableTopicResult(Struct):
    name: str | None = row("string", "0+", nullable="6+")
    topic_id: bytes = row("uuid", "6+", ignorable=True)
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "5+", nullable="5+", default=None, ignorable=True)


class DeleteTopicsResponse(Message, key=20, kind="response", versions="1-6", flexible="4+"):
    throttle_time_ms: int = row("int32", "1+", ignorable=True)
    responses: list[DeletableTopicResult] = row([DeletableTopicResult], "0+")

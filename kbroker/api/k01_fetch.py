"""Fetch (key 1), versions 4 to 18, with incremental sessions from version 7 on (KIP-227).

- The records of a response are slices of the log: complete batches, starting with the one that contains the offset.
- The first batch is sent even if it exceeds the limits (KIP-74).
- From version 13 on topics are named by id (KIP-516).
- With read_committed the consumer reads up to the last stable offset.
- A request from a follower (replica id ≥ 0) is refused with NOT_LEADER_OR_FOLLOWER, since there is no replication yet.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.replica.fetch.delayed_fetch import DelayedFetch
from kbroker.replica.fetch.partition_reads import READ_COMMITTED, READ_UNCOMMITTED
from protocol.errors import ErrorCode
from protocol.fast.fetch import FIRST_TOPIC_ID_VERSION, FetchRequest, FetchResponse, FetchResult


def handle(services: Services, context: RequestContext, request: FetchRequest) -> FetchResponse | DelayedFetch:
    uses_topic_ids = context.version >= FIRST_TOPIC_ID_VERSION
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return _unknown_isolation_level(request, uses_topic_ids)
    return services.fetching.fetch(request, uses_topic_ids)


def _unknown_isolation_level(request: FetchRequest, uses_topic_ids: bool) -> FetchResponse:
    """Respond like Kafka, where this is an unexpected error."""
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    topics = [(key, [FetchResult(row[0], code, -1, -1, -1, [], b"") for row in rows]) for key, rows in request.topics]
    return FetchResponse(code, request.session_id, [] if uses_topic_ids else topics)

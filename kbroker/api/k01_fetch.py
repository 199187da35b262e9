"""Fetch (key 1), versions 4 to 18, with incremental sessions from version 7 on (KIP-227).

- The answer's records are slices of the log, whole batches from the one that holds the fetch offset.
- The first batch is given whole even when it exceeds the limits (KIP-74).
- From version 13 on topics are named by id (KIP-516).
- read_committed sees up to the last stable offset.
A request of a replica (replica id ≥ 0) is refused with NOT_LEADER_OR_FOLLOWER: replication comes with the cluster.
"""

from __future__ import annotations

from kbroker.api.context import RequestContext, Services
from kbroker.replica.fetch.log_reads import READ_COMMITTED, READ_UNCOMMITTED
from kbroker.runtime.delayed_response import DelayedResponse
from protocol.errors import ErrorCode
from protocol.fast.fetch import FIRST_TOPIC_ID_VERSION, FetchRequest, FetchResponse, FetchResult

Response = FetchResponse | DelayedResponse[FetchResponse]


def handle(
    services: Services, context: RequestContext, request: FetchRequest
) -> FetchResponse | DelayedResponse[FetchResponse]:
    by_id = context.version >= FIRST_TOPIC_ID_VERSION
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return _unknown_isolation_level(request, by_id)
    return services.fetching.fetch(request, by_id)


def _unknown_isolation_level(request: FetchRequest, by_id: bool) -> FetchResponse:
    """Kafka fails unexpectedly on an unknown isolation level, and responds with this code."""
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    topics = [(key, [FetchResult(row[0], code, -1, -1, -1, [], b"") for row in rows]) for key, rows in request.topics]
    return FetchResponse(code, request.session_id, [] if by_id else topics)

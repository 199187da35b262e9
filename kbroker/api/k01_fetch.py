"""Fetch (key 1), versions 4 to 18, with incremental sessions from version 7 on (KIP-227).

- The answer's records are slices of the log, whole batches from the one that holds the fetch offset.
- The first batch is given whole even when it exceeds the limits (KIP-74).
- From version 13 on topics are named by id (KIP-516).
- read_committed sees up to the last stable offset.
A request of a replica (replica id ≥ 0) is refused with NOT_LEADER_OR_FOLLOWER: replication comes with the cluster.
"""

from __future__ import annotations

from kbroker.api.context import PENDING, Body, Pending, RequestContext, Services
from kbroker.api.response_errors import partition_named
from kbroker.replica.fetch.log_reads import READ_COMMITTED, READ_UNCOMMITTED, Results
from protocol.errors import ErrorCode
from protocol.fast.fetch import (
    FIRST_TOPIC_ID_VERSION,
    FetchRequest,
    FetchResult,
    TopicKey,
    decode_fetch_request,
    encode_fetch_response,
)


def serve(services: Services, context: RequestContext, frame: memoryview, pos: int) -> Body | Pending:
    version = context.version
    request = decode_fetch_request(frame, pos, version)
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return _refuse_all(context, request)

    sent = services.bytes_out

    def answer(error_code: int, session_id: int, results: Results) -> None:
        if error_code:
            context.refused(error_code)
        context.respond(encode_fetch_response(version, error_code, session_id, by_topic(results, context, sent)))

    context.on_abandoned = services.fetching.fetch(request, version >= FIRST_TOPIC_ID_VERSION, answer)
    return PENDING


def _refuse_all(context: RequestContext, request: FetchRequest) -> Body:
    """Kafka fails on an unknown isolation level unforeseen, and says so."""
    version, code = context.version, ErrorCode.UNKNOWN_SERVER_ERROR
    context.refused(code, "unknown isolation level", subject={"isolation_level": request.isolation_level})
    topics = [(key, [FetchResult(row[0], code, -1, -1, -1, [], b"") for row in rows]) for key, rows in request.topics]
    told = topics if version < FIRST_TOPIC_ID_VERSION else []
    return encode_fetch_response(version, code, request.session_id, told)


def by_topic(
    results: Results, context: RequestContext, sent: dict[TopicKey, int]
) -> list[tuple[TopicKey, list[FetchResult]]]:
    """Group results under their topics, in the order in which topics first appear; tell of those that are refusals,
    and count the bytes that are sent."""
    topics: dict[TopicKey, list[FetchResult]] = {}
    for fetched, result in results:
        if result[1]:
            about = partition_named(fetched.key, fetched.index)
            context.refused(result[1], subject={**about, "offset": fetched.offset})
        size = len(result.records)
        if size:
            sent[fetched.key] = sent.get(fetched.key, 0) + size
        found = topics.get(fetched.key)
        if found is None:
            topics[fetched.key] = [result]
        else:
            found.append(result)
    return list(topics.items())

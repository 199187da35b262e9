"""Fetch (key 1), versions 4 to 18, with incremental sessions from version 7 on (KIP-227).

- The records of a response are slices of the log: complete batches, starting with the one that contains the offset.
- The first batch is sent even if it exceeds the limits (KIP-74).
- From version 13 on topics are named by id (KIP-516).
- With read_committed the consumer reads up to the last stable offset.
- A follower (replica id ≥ 0) reads to the log end, in a session that consumers cannot evict. Its fetch offset is its
  claim to have everything below. It may send a Fetch while another one waits, which is then answered.
- Followers fetch over the inter-broker listener only, where `peer_broker` is known; from any other connection their
  requests are refused with INVALID_REQUEST.
- A large request is handled in turns. Meanwhile its session is busy: no other request can use it.
- The client needs READ on a topic at the time of the response, also after a wait. A session belongs to its principal.
- A response to a request without a session is sent again to the same request, while the partition is unchanged.
- While its client exceeds the quota of consumers, a request gets a response without partitions (KIP-219).
"""

from collections.abc import Iterator
from functools import partial

from kbroker.api.context import RequestContext, Services
from kbroker.api.dispatch import Codec
from kbroker.api.response_errors import Description, partition_subject, report_errors
from kbroker.common import Buffer
from kbroker.replica.fetch.fetch_session import READ_COMMITTED, READ_UNCOMMITTED, DelayedFetch
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.fast.fetch import (
    FIRST_TOPIC_ID_VERSION,
    Buffers,
    FetchRequest,
    FetchResponse,
    FetchResult,
    decode_fetch_request,
    encode_fetch_response,
)


def codec(version: int) -> Codec:
    return Codec(decode_fetch_request, encode_fetch_response, encode_fetch_response, FetchResponse, report)


def handle(services: Services, context: RequestContext, request: FetchRequest) -> FetchResponse | DelayedFetch:
    uses_topic_ids = context.version >= FIRST_TOPIC_ID_VERSION
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return _unknown_isolation_level(request, uses_topic_ids)
    identity = context.connection.identity
    if request.replica_id >= 0 and identity.peer_broker != (request.replica_id, request.replica_epoch):
        context.connection.close("Fetch of a follower from another broker", context, replica=request.replica_id)
        return FetchResponse(ErrorCode.INVALID_REQUEST, 0, [])
    # What a broker fetches is not checked.
    is_checked = services.authorizer is not None and request.replica_id < 0
    access = context.access(services) if is_checked else None
    charge, is_throttled = context.charge, False
    if charge is not None and charge.fetch_bytes is not None:
        request.max_bytes = min(request.max_bytes, charge.fetch_bytes)
        is_throttled = charge.fetch_bytes == 0
    return services.fetching.fetch(
        request, uses_topic_ids, identity.listener, context.in_turns, identity.principal, access, is_throttled
    )


def find_response(services: Services, key: bytes) -> list[Buffer] | None:
    return services.fetching.find_cached(key)


def keep_response(
    services: Services, key: bytes, request: FetchRequest, response: FetchResponse, body: Buffers
) -> None:
    services.fetching.cache_response(key, request, response, body)


def _unknown_isolation_level(request: FetchRequest, uses_topic_ids: bool) -> FetchResponse:
    """Respond like Kafka, where this is an unexpected error."""
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    topics = [(key, [FetchResult(row[0], code, -1, -1, -1, [], b"") for row in rows]) for key, rows in request.topics]
    return FetchResponse(code, request.session_id, [] if uses_topic_ids else topics)


# The report of errors.


def report(context: RequestContext, request: FetchRequest, response: FetchResponse) -> None:
    if response.error_code:
        report_errors(context, [(response.error_code, request)], partial(_describe_session_error, response.error_code))
        return
    for _, results in response.topics:
        for result in paced(results) if context.in_turns else results:
            if result.error_code:
                report_errors(context, _errors(response), partial(_describe, request))
                return


def _errors(response: FetchResponse) -> Iterator[tuple[int, tuple[str | bytes, FetchResult]]]:
    for key, rows in response.topics:
        for row in paced(rows):
            if row.error_code:
                yield row.error_code, (key, row)


def _describe_session_error(code: int, request: FetchRequest) -> Description:
    """Describe an error of the whole request."""
    if code == ErrorCode.UNKNOWN_SERVER_ERROR:
        return "unknown isolation level", {"isolation_level": request.isolation_level}
    return None, {"session": request.session_id or None, "epoch": request.session_epoch}


def _describe(request: FetchRequest, error: tuple[str | bytes, FetchResult]) -> Description:
    key, result = error
    subject = partition_subject(key, result.partition)
    for requested, partitions in request.topics:
        if requested == key:
            # The request does not contain partitions that an earlier request added to the session.
            subject["offset"] = next((offset for index, _, offset, *_ in partitions if index == result.partition), None)
    return result.error_message, subject

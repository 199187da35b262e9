"""Share consumers (KIP-932): ShareFetch (key 78) and ShareAcknowledge (key 79), versions 1 and 2.

- ShareFetch acknowledges records, then acquires others of the partitions of its share session, and waits for them. The
  response has batches of the log, and says which of their records the member has until when.
- ShareAcknowledge only acknowledges. With the final epoch both close the session, which releases what the member has.
- The acknowledgements of a partition are all accepted, or none. They are persisted before the response.
- A renewal (version 2, KIP-1222) extends locks; its request fetches nothing.
- The first request of a session cannot acknowledge anything.
- With ACLs they need READ on the group, and on each topic whenever records of it are acquired or acknowledged.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from kbroker.api.authorization import require
from kbroker.api.context import RequestContext, Services
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.common import KafkaError
from kbroker.metadata.features import SHARE_VERSION
from kbroker.runtime.turns import paced
from kbroker.share.delivery import Acknowledgement, AcknowledgeType
from kbroker.share.leader import AcquiredRecords, AcquireRequest
from kbroker.share.partition import not_acquired
from kbroker.share.session import FINAL_EPOCH, INITIAL_EPOCH, ShareSession, TopicIdPartition
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.fast.current_leader import CurrentLeader
from protocol.messages.k78_share_fetch import (
    AcknowledgementBatch,
    AcknowledgePartitionData,
    LeaderIdAndEpoch,
    NodeEndpoint,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    SharePartitionData,
)
from protocol.messages.k78_share_fetch import AcquiredRecords as AcquiredRange

# Acquire modes (KIP-1206).
BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1

Acknowledgements = dict[TopicIdPartition, list[AcknowledgementBatch]]
# The outcome of the acknowledgements of each partition.
Outcomes = dict[TopicIdPartition, KafkaError | None]


async def share_fetch(services: Services, context: RequestContext, request: ShareFetchRequest) -> ShareFetchResponse:
    group_id, member_id = _identity(services, request.group_id, request.member_id)
    acknowledgements = _acknowledgements(request.topics)
    epoch, sharing = request.share_session_epoch, services.share
    _check(request, acknowledgements)
    if epoch == FINAL_EPOCH:
        session = sharing.begin_acknowledgement(group_id, member_id, epoch)
    else:
        added = [(topic.topic_id, each.partition_index) for topic in request.topics for each in paced(topic.partitions)]
        forgotten = [
            (each.topic_id, index) for each in request.forgotten_topics_data for index in paced(each.partitions)
        ]
        session = sharing.begin_fetch(group_id, member_id, epoch, context.connection, added, forgotten)
    outcomes = await _acknowledge(services, context, session, acknowledgements, request.is_renew_ack)
    results = {}
    if epoch == FINAL_EPOCH:
        await sharing.release(session)
    elif not request.is_renew_ack:
        wanted = AcquireRequest(
            session,
            max(request.max_records, 0),
            request.batch_size,
            request.share_acquire_mode == RECORD_LIMIT,
            # At least one batch, even if other clients do not read their responses.
            max(services.fetching.max_consumer_bytes(request.max_bytes), min(request.max_bytes, 1)),
        )
        check_topic = partial(_check_topic, services, context)
        results = await sharing.fetch(wanted, request.max_wait_ms, request.min_bytes, check_topic)
    response = ShareFetchResponse(acquisition_lock_timeout_ms=_lock_duration_ms(services, group_id))
    leaders = _Leaders(services, context.listener)
    topics: dict[bytes, list[SharePartitionData]] = {}
    # As in Kafka, the first response of a session has all partitions.
    requested = session.partitions if epoch == INITIAL_EPOCH else ()
    for topic_id, index in paced(dict.fromkeys((*outcomes, *results, *requested))):
        key = topic_id, index
        data = SharePartitionData(partition_index=index)
        found, refusal = results.get(key), outcomes.get(key)
        if refusal is not None:
            data.acknowledge_error_code, data.acknowledge_error_message = refusal.code, refusal.message
            data.current_leader = leaders.of(key, refusal.code)
        if isinstance(found, AcquiredRecords):
            data.records = found.records
            data.acquired_records = [
                AcquiredRange(first_offset=first, last_offset=last, delivery_count=count)
                for first, last, count in found.acquired
            ]
        elif found is not None:
            data.error_code, data.error_message = found.code, found.message
            data.current_leader = leaders.of(key, found.code)
        topics.setdefault(topic_id, []).append(data)
    response.responses = [ShareFetchableTopicResponse(topic_id=id, partitions=rows) for id, rows in topics.items()]
    response.node_endpoints = leaders.endpoints
    return response


async def share_acknowledge(
    services: Services, context: RequestContext, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    group_id, member_id = _identity(services, request.group_id, request.member_id)
    epoch, sharing = request.share_session_epoch, services.share
    session = sharing.begin_acknowledgement(group_id, member_id, epoch)
    acknowledgements = _acknowledgements(request.topics)
    outcomes = await _acknowledge(services, context, session, acknowledgements, request.is_renew_ack)
    if epoch == FINAL_EPOCH:
        await sharing.release(session)
    leaders = _Leaders(services, context.listener)
    topics: dict[bytes, list[AcknowledgePartitionData]] = {}
    for (topic_id, index), refusal in paced(outcomes.items()):
        data = AcknowledgePartitionData(partition_index=index)
        if refusal is not None:
            data.error_code, data.error_message = refusal.code, refusal.message
            data.current_leader = leaders.of((topic_id, index), refusal.code)
        topics.setdefault(topic_id, []).append(data)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=_lock_duration_ms(services, group_id),
        responses=[ShareAcknowledgeTopicResponse(topic_id=id, partitions=rows) for id, rows in topics.items()],
        node_endpoints=leaders.endpoints,
    )


def _check(request: ShareFetchRequest, acknowledgements: Acknowledgements) -> None:
    """Raise KafkaError for a request that contradicts itself."""
    if request.share_session_epoch == INITIAL_EPOCH and acknowledgements:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    fetches = request.max_bytes or request.min_bytes or request.max_records or request.max_wait_ms
    if request.is_renew_ack and fetches:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.share_acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT):
        # As in Kafka, where this is an unexpected error.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)


def _identity(services: Services, group_id: str | None, member_id: str | None) -> tuple[str, str]:
    """Return the group and the member of a request. Raises KafkaError: UNSUPPORTED_VERSION, INVALID_REQUEST."""
    if not services.metadata.features.level(SHARE_VERSION):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if not group_id or not member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return group_id, member_id


def _lock_duration_ms(services: Services, group_id: str) -> int:
    return services.share.settings(group_id).delivery.lock_duration_ms


def _acknowledgements(topics: Sequence[Any]) -> Acknowledgements:
    found: Acknowledgements = {}
    for topic in paced(topics):
        for each in paced(topic.partitions):
            if each.acknowledgement_batches:
                found[topic.topic_id, each.partition_index] = each.acknowledgement_batches
    return found


def _check_topic(services: Services, context: RequestContext, topic_id: bytes) -> None:
    """Raise KafkaError if the client may not read a topic. The partitions of unknown ones have another error."""
    name = services.metadata.topic_name(topic_id)
    if name is not None:
        require(services, context, Operation.READ, ResourceType.TOPIC, name)


async def _acknowledge(
    services: Services,
    context: RequestContext,
    session: ShareSession,
    acknowledgements: Acknowledgements,
    is_renewal: bool,
) -> Outcomes:
    """Acknowledge records of several partitions at the same time."""
    outcomes: Outcomes = {}
    pending = {}
    for key, batches in paced(acknowledgements.items()):
        try:
            _check_topic(services, context, key[0])
            spans = _by_type(batches, is_renewal)
            pending[key] = services.share.acknowledge(session.group_id, session.member_id, key, spans)
            outcomes[key] = None
        except KafkaError as error:
            outcomes[key] = error
    for key, done in pending.items():
        code = await done
        if code:
            outcomes[key] = KafkaError(code)
    return outcomes


def _by_type(batches: Sequence[AcknowledgementBatch], is_renewal: bool) -> list[Acknowledgement]:
    """Return spans of records with the same type. Raises KafkaError(INVALID_REQUEST) for contradictions."""
    spans: list[Acknowledgement] = []
    last = -1
    for each in paced(batches):
        types, size = each.acknowledge_types, each.last_offset - each.first_offset + 1
        if each.first_offset < last or size <= 0 or len(types) not in (1, size):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if each.first_offset == last:
            # As in Kafka, where this is the second acknowledgement of the record.
            raise not_acquired()
        last = each.last_offset
        end = each.last_offset if len(types) == 1 else each.first_offset
        for offset, kind in paced(enumerate(types, each.first_offset)):
            if not AcknowledgeType.GAP <= kind <= (AcknowledgeType.RENEW if is_renewal else AcknowledgeType.REJECT):
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            if spans and spans[-1].type == kind and spans[-1].last + 1 == offset:
                spans[-1] = spans[-1]._replace(last=end)
            else:
                spans.append(Acknowledgement(offset, end, kind))
            end += 1
    return spans


class _Leaders:
    """Names the current leaders of partitions that this broker does not lead (KIP-951)."""

    def __init__(self, services: Services, listener: str) -> None:
        self.endpoints: list[NodeEndpoint] = []
        self._find = partial(services.replicas.current_leader, listener=listener)

    def of(self, key: TopicIdPartition, code: int) -> LeaderIdAndEpoch:
        if code not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            return LeaderIdAndEpoch()
        found: CurrentLeader | None = self._find(*key)
        if found is None:
            return LeaderIdAndEpoch()
        known = [endpoint.node_id for endpoint in self.endpoints]
        if found.endpoint is not None and found.id not in known:
            host, port, rack = found.endpoint
            self.endpoints.append(NodeEndpoint(node_id=found.id, host=host, port=port, rack=rack))
        return LeaderIdAndEpoch(leader_id=found.id, leader_epoch=found.epoch)


HANDLERS = {ApiKey.SHARE_FETCH: share_fetch, ApiKey.SHARE_ACKNOWLEDGE: share_acknowledge}

"""ElectLeaders (key 43), versions 0 to 2: elect the preferred leaders of partitions, or leaders that are not in sync.

- A null list means all partitions; those that need no election are then omitted from the response.
- Version 1 adds the election type (KIP-460); version 0 elects preferred leaders.
- The response is sent when the elections are written; timeout_ms is ignored.
"""

from collections.abc import Iterable

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError, TopicPartition
from kbroker.metadata.control_manager import PartitionOutcome
from kbroker.metadata.replication.partition_requests import parse_election_type
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k43_elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

FORWARDED = True
# A request without a list means all partitions.
RUNS_IN_TURNS = True

FIRST_WITH_ERROR_CODE = 1


async def handle(services: Services, context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    if request.topic_partitions is not None and not request.topic_partitions:
        return ElectLeadersResponse()
    election_type = parse_election_type(request.election_type)
    outcomes = await services.controller.elect_leaders(election_type, _requested(request))
    results = _results(request, list(services.metadata.topics), outcomes)
    return ElectLeadersResponse(replica_election_results=results)


def failed_response(context: RequestContext, request: ElectLeadersRequest, error: KafkaError) -> ElectLeadersResponse:
    code = error.code if context.version >= FIRST_WITH_ERROR_CODE else ErrorCode.NONE
    outcomes = (PartitionOutcome(topic, index, error) for topic, index in _requested(request) or ())
    return ElectLeadersResponse(error_code=code, replica_election_results=_results(request, (), outcomes))


def _requested(request: ElectLeadersRequest) -> list[TopicPartition] | None:
    """Return the requested partitions, None for all."""
    if request.topic_partitions is None:
        return None
    return [
        TopicPartition(topic.topic, index)
        for topic in paced(request.topic_partitions)
        for index in paced(topic.partitions)
    ]


def _results(
    request: ElectLeadersRequest, all_topics: Iterable[str], outcomes: Iterable[PartitionOutcome]
) -> list[ReplicaElectionResult]:
    """Return the outcomes by topic. Every requested topic has a result, even without partitions."""
    meant = all_topics if request.topic_partitions is None else (topic.topic for topic in request.topic_partitions)
    results = {name: ReplicaElectionResult(topic=name) for name in paced(meant)}
    for topic, index, error in paced(outcomes):
        result = results.setdefault(topic, ReplicaElectionResult(topic=topic))
        result.partition_result.append(
            PartitionResult(
                partition_id=index,
                error_code=error.code if error else ErrorCode.NONE,
                error_message=error.message if error else None,
            )
        )
    return list(results.values())

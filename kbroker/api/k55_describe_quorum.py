"""DescribeQuorum (key 55), versions 0 to 2: the controller, as the leader of the metadata quorum, and the brokers.

kbroker has no metadata log (partition 0 of __cluster_metadata): its controller writes numbered changes to the
coordination service. The fields of a Raft quorum are filled as follows:

- Leader: the controller. Voters: all brokers that can be elected as the controller, which are those that are registered
  and not fenced. There are no observers.
- Leader epoch: the controller epoch, which grows with each election, so with each start of a single broker.
- High watermark and log end offset: the number of the last metadata change. They are equal, since no change is visible
  before it is durable. Changes of registrations, topics, partitions, configs and features count; blocks of producer ids
  do not.
- Log end offset of the other voters: the same. The controller does not know how far they are, since they read changes
  from the coordination service, and a broker that does not is fenced.
- Time of the last fetch, and time when last caught up (version 1): now, as for the leader in Kafka.
- Directory id (version 2): zero, as in Kafka with a fixed set of voters (kraft.version 0).
- Endpoints of a voter (version 2): the broker's advertised listeners. In Kafka they are controller listeners.

A request must name this partition and no other; otherwise each partition in it gets UNKNOWN_TOPIC_OR_PARTITION. A
broker that is not the controller forwards the request to it.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)

FORWARDED = True
METADATA_TOPIC = "__cluster_metadata"
METADATA_PARTITION = 0
FIRST_WITH_VOTER_ENDPOINTS = 2


def handle(services: Services, context: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    if not _names_metadata_partition(request):
        return _unknown_partitions(request)
    if not services.controller.is_elected:
        return _response([_not_leader()])
    return _response(
        [_quorum(services)],
        _voter_endpoints(services, context) if context.version >= FIRST_WITH_VOTER_ENDPOINTS else [],
    )


def _names_metadata_partition(request: DescribeQuorumRequest) -> bool:
    if len(request.topics) != 1 or request.topics[0].topic_name != METADATA_TOPIC:
        return False
    partitions = request.topics[0].partitions
    return len(partitions) == 1 and partitions[0].partition_index == METADATA_PARTITION


def _unknown_partitions(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    response = DescribeQuorumResponse()
    for topic in paced(request.topics):
        partitions = [
            PartitionData(
                partition_index=row.partition_index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message="This server does not host this topic-partition.",
            )
            for row in paced(topic.partitions)
        ]
        response.topics.append(TopicData(topic_name=topic.topic_name, partitions=partitions))
    return response


def _response(partitions: list[PartitionData], nodes: list[Node] | None = None) -> DescribeQuorumResponse:
    topics = [TopicData(topic_name=METADATA_TOPIC, partitions=partitions)]
    return DescribeQuorumResponse(topics=topics, nodes=nodes or [])


def _not_leader() -> PartitionData:
    return PartitionData(
        partition_index=METADATA_PARTITION,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        error_message="This broker is not the controller.",
    )


def _quorum(services: Services) -> PartitionData:
    controller = services.controller
    now_ms = services.environment.clock.now_ms()
    return PartitionData(
        partition_index=METADATA_PARTITION,
        leader_id=controller.node_id,
        leader_epoch=controller.epoch,
        high_watermark=controller.last_change_number,
        current_voters=[
            ReplicaState(
                replica_id=broker_id,
                log_end_offset=controller.last_change_number,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
            for broker_id in sorted({controller.node_id, *services.metadata.brokers})
        ],
    )


def _voter_endpoints(services: Services, context: RequestContext) -> list[Node]:
    return [
        Node(
            node_id=broker.id,
            listeners=[
                Listener(name=endpoint.listener, host=endpoint.host, port=endpoint.port)
                for endpoint in broker.endpoints or filter(None, [broker.endpoint(context.listener)])
            ],
        )
        for _, broker in sorted(services.metadata.brokers.items())
    ]

"""DescribeCluster (key 60), versions 0 to 2: the brokers, the controller and the cluster id.

- The addresses are those of the request's listener; brokers without it are left out.
- Version 1 adds endpoint_type (KIP-919): 1 (brokers) is supported, 2 (controllers) gets MISMATCHED_ENDPOINT_TYPE.
- Version 2 adds include_fenced_brokers (KIP-1073): also the brokers that have been registered once and are not now.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.k03_metadata import controller_id
from kbroker.authorization.acl import CLUSTER_NAME, OPERATIONS_NOT_REQUESTED, ResourceType
from protocol.errors import ErrorCode
from protocol.messages.k60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS, CONTROLLERS = 1, 2


def handle(services: Services, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to a broker, but asks for controllers.",
        )
    if request.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unsupported endpoint type {request.endpoint_type}",
        )
    metadata = services.metadata
    registered = [(broker, False) for broker in metadata.brokers.values()]
    if request.include_fenced_brokers:
        registered += [(broker, True) for broker in metadata.fenced_brokers.values()]
    brokers = [
        DescribeClusterBroker(
            broker_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack, is_fenced=is_fenced
        )
        for broker, is_fenced in registered
        if (endpoint := broker.endpoint(context.listener)) is not None
    ]
    return DescribeClusterResponse(
        cluster_id=metadata.cluster_id,
        controller_id=controller_id(metadata, metadata.endpoints(context.listener)),
        brokers=brokers,
        cluster_authorized_operations=(
            context.authorized_operations(services, ResourceType.CLUSTER, CLUSTER_NAME)
            if request.include_cluster_authorized_operations
            else OPERATIONS_NOT_REQUESTED
        ),
    )

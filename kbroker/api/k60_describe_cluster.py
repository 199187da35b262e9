"""DescribeCluster (key 60), versions 0 to 2: the brokers, the controller, the cluster id.

Version 1 asks for an endpoint type: only brokers (1) can be asked here. Version 2 may ask for fenced brokers:
there are none, for a broker that is not registered is not known.
"""

from kbroker.api.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED
from kbroker.api.context import RequestContext, Services
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
    image = services.metadata
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=node.id, host=node.host, port=node.port, rack=node.rack)
            for node in image.brokers.values()
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )

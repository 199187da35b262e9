"""ListPartitionReassignments (key 46), version 0: an empty list, since kbroker never moves replicas.

Topics and partitions that do not exist are not errors, as in Apache Kafka. timeout_ms is ignored.
"""

from kbroker.api.context import RequestContext, Services
from protocol.messages.k46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    services: Services, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_message=None)

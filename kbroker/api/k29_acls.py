"""What depends on an authorizer, which kbroker does not have; the responses are those of an Apache Kafka without one.

DescribeAcls (key 29), CreateAcls (key 30) and DeleteAcls (key 31), versions 1 to 3: SECURITY_DISABLED. Clients such as
MirrorMaker 2 then skip ACLs; a closed connection would be an error to them.

The operations that a client may perform are bit sets of Kafka's AclOperation numbers: all operations that apply to the
type of resource, as in Apache Kafka 4.4.0.
"""

from kbroker.api.context import RequestContext, Services
from protocol.apis import ApiKey
from protocol.errors import ErrorCode, MalformedError
from protocol.messages.k29_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

OPERATIONS_NOT_REQUESTED = -(2**31)
# Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs.
TOPIC_OPERATIONS = 3576
# Create, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, IdempotentWrite.
CLUSTER_OPERATIONS = 8096
# Read, Delete, Describe, DescribeConfigs, AlterConfigs.
GROUP_OPERATIONS = 3400

UNKNOWN = 0
DISABLED, NO_AUTHORIZER = ErrorCode.SECURITY_DISABLED, "No Authorizer is configured"


def describe_acls(services: Services, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    _reject_unknown(
        request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type
    )
    return DescribeAclsResponse(error_code=DISABLED, error_message=f"{NO_AUTHORIZER} on the broker")


def create_acls(services: Services, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    for acl in request.creations:
        _reject_unknown(acl.resource_type, acl.resource_pattern_type, acl.operation, acl.permission_type)
    result = AclCreationResult(error_code=DISABLED, error_message=f"{NO_AUTHORIZER}.")
    return CreateAclsResponse(results=[result] * len(request.creations))


def delete_acls(services: Services, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    for acl in request.filters:
        _reject_unknown(acl.resource_type_filter, acl.pattern_type_filter, acl.operation, acl.permission_type)
    result = DeleteAclsFilterResult(error_code=DISABLED, error_message=f"{NO_AUTHORIZER}.")
    return DeleteAclsResponse(filter_results=[result] * len(request.filters))


def _reject_unknown(*numbers: int) -> None:
    """Raise MalformedError, which closes the connection, if a resource type, pattern type, operation or permission
    type is UNKNOWN (0).

    Apache Kafka makes this check when it parses a request, before it looks for an authorizer. It accepts numbers that
    belong to no type.
    """
    if UNKNOWN in numbers:
        raise MalformedError("an ACL or an ACL filter has an unknown element")


HANDLERS = {ApiKey.DESCRIBE_ACLS: describe_acls, ApiKey.CREATE_ACLS: create_acls, ApiKey.DELETE_ACLS: delete_acls}

"""DescribeAcls (key 29), versions 1 to 3: SECURITY_DISABLED, since there is no authorizer.

An Apache Kafka without an authorizer returns the same. Clients such as MirrorMaker 2 then skip ACLs; a closed
connection would be an error to them.
"""

from kbroker.api.acl_requests import reject_unknown
from kbroker.api.context import RequestContext, Services
from protocol.errors import ErrorCode
from protocol.messages.k29_describe_acls import DescribeAclsRequest, DescribeAclsResponse


def handle(services: Services, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    reject_unknown(
        request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type
    )
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
    )

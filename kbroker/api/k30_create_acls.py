"""CreateAcls (key 30), versions 1 to 3: SECURITY_DISABLED for each ACL, since there is no authorizer."""

from kbroker.api.acl_requests import reject_unknown
from kbroker.api.context import RequestContext, Services
from protocol.errors import ErrorCode
from protocol.messages.k30_create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse


def handle(services: Services, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    for acl in request.creations:
        reject_unknown(acl.resource_type, acl.resource_pattern_type, acl.operation, acl.permission_type)
    result = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured.")
    return CreateAclsResponse(results=[result] * len(request.creations))

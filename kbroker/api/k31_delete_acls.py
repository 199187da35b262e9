"""DeleteAcls (key 31), versions 1 to 3: SECURITY_DISABLED for each filter, since there is no authorizer."""

from kbroker.api.acl_requests import reject_unknown
from kbroker.api.context import RequestContext, Services
from protocol.errors import ErrorCode
from protocol.messages.k31_delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse


def handle(services: Services, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    for acl in request.filters:
        reject_unknown(acl.resource_type_filter, acl.pattern_type_filter, acl.operation, acl.permission_type)
    result = DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured."
    )
    return DeleteAclsResponse(filter_results=[result] * len(request.filters))

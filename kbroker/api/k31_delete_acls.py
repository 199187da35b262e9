"""DeleteAcls (key 31), versions 1 to 3: SECURITY_DISABLED for each filter, since there is no authorizer."""

from kbroker.api.acl_requests import check_known
from kbroker.api.context import RequestContext, Services
from protocol.errors import ErrorCode
from protocol.messages.k31_delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse


def handle(services: Services, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    for wanted in request.filters:
        check_known(wanted.resource_type_filter, wanted.pattern_type_filter, wanted.operation, wanted.permission_type)
    refusal = DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured."
    )
    return DeleteAclsResponse(filter_results=[refusal] * len(request.filters))

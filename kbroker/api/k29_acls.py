"""ACLs: DescribeAcls (key 29), CreateAcls (key 30) and DeleteAcls (key 31), versions 1 to 3 (KIP-140, KIP-290).

- DescribeAcls lists the ACLs of this broker's image. The controller creates and deletes them.
- Errors of ACLs and of filters are independent. One ACL with an element that only filters may have (ANY, MATCH) fails
  the whole CreateAcls request with UNKNOWN_SERVER_ERROR, as in Apache Kafka 4.4.0. A type that is UNKNOWN (0) closes
  the connection.
- A response to a change is sent when the other brokers have it, too, or after PROPAGATION_S.
- Without an authorizer: SECURITY_DISABLED. Clients such as MirrorMaker 2 then skip ACLs; a closed connection would be
  an error to them.
"""

from collections.abc import Sequence
from itertools import groupby

from kbroker.api.context import Handle, RequestContext, Services
from kbroker.api.forwarding import Send
from kbroker.authorization.acl import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
    numbered,
)
from kbroker.common import KafkaError
from kbroker.runtime.turns import paced
from protocol.apis import ApiKey
from protocol.errors import ErrorCode, MalformedError
from protocol.messages.k29_acls import (
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from protocol.schema.message import Message

FORWARDED = {ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS}
RUNS_IN_TURNS = {ApiKey.DESCRIBE_ACLS}

# How long the response to a change waits for other brokers, in seconds.
PROPAGATION_S = 1.0
DISABLED, NO_AUTHORIZER = ErrorCode.SECURITY_DISABLED, "No Authorizer is configured"


def describe_acls(services: Services, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    (filter,) = _filters([request])
    if services.authorizer is None:
        raise KafkaError(DISABLED, f"{NO_AUTHORIZER} on the broker")
    matching = sorted(acl for acl in paced(services.metadata.rules.acls) if filter.matches(acl))
    resources = []
    for (resource_type, pattern_type, name), acls in groupby(matching, lambda acl: acl[:3]):
        descriptions = [
            AclDescription(
                principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
            )
            for acl in paced(acls)
        ]
        resource = DescribeAclsResource(resource_type=resource_type, resource_name=name, pattern_type=pattern_type)
        resource.acls = descriptions
        resources.append(resource)
    return DescribeAclsResponse(error_message="", resources=resources)


async def create_acls(services: Services, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    acls = _acls(request)
    _check_authorizer(services)
    if any(acl.is_for_filters for acl in paced(acls)):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    errors = await services.controller.acls.create(acls)
    await _propagate(services)
    return CreateAclsResponse(results=[_creation_result(error) for error in paced(errors)])


async def delete_acls(services: Services, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    filters = _filters(request.filters)
    _check_authorizer(services)
    matching = await services.controller.acls.delete(filters)
    await _propagate(services)
    return DeleteAclsResponse(
        filter_results=[_deletion_result(filter, acls) for filter, acls in zip(filters, matching, strict=True)]
    )


def failed_response(
    context: RequestContext, request: DescribeAclsRequest | CreateAclsRequest | DeleteAclsRequest, error: KafkaError
) -> DescribeAclsResponse | CreateAclsResponse | DeleteAclsResponse:
    if isinstance(request, DescribeAclsRequest):
        return DescribeAclsResponse(error_code=error.code, error_message=error.message)
    if isinstance(request, CreateAclsRequest):
        return CreateAclsResponse(results=[_creation_result(error)] * len(request.creations))
    result = DeleteAclsFilterResult(error_code=error.code, error_message=error.message)
    return DeleteAclsResponse(filter_results=[result] * len(request.filters))


async def forward(
    services: Services,
    context: RequestContext,
    request: CreateAclsRequest | DeleteAclsRequest,
    handle: Handle,
    send: Send,
) -> Message:
    """Send a request to the controller; a malformed one ends here."""
    if isinstance(request, CreateAclsRequest):
        _acls(request)
    else:
        _filters(request.filters)
    response: Message = await send(request)
    return response


def _acls(request: CreateAclsRequest) -> list[Acl]:
    """Return the ACLs of a request. Raises MalformedError."""
    acls = []
    for row in paced(request.creations):
        resource, pattern, operation, permission = _types(
            row.resource_type, row.resource_pattern_type, row.operation, row.permission_type
        )
        acls.append(Acl(resource, pattern, row.resource_name, row.principal, row.host, operation, permission))
    return acls


def _filters(rows: Sequence[DescribeAclsRequest | DeleteAclsFilter]) -> list[AclFilter]:
    """Return the filters of a request. Raises MalformedError."""
    filters = []
    for row in paced(rows):
        resource, pattern, operation, permission = _types(
            row.resource_type_filter, row.pattern_type_filter, row.operation, row.permission_type
        )
        names = row.resource_name_filter, row.principal_filter, row.host_filter
        filters.append(AclFilter(resource, pattern, *names, operation, permission))
    return filters


def _types(
    resource: int, pattern: int, operation: int, permission: int
) -> tuple[ResourceType, PatternType, Operation, PermissionType]:
    """Return the types of an ACL or a filter. Raises MalformedError if one is UNKNOWN (0), which closes the connection.

    Apache Kafka makes this check when it parses a request, before it looks for an authorizer. It accepts numbers that
    belong to no type.
    """
    if ResourceType.UNKNOWN in (resource, pattern, operation, permission):
        raise MalformedError("an ACL or an ACL filter has an unknown element")
    return (
        numbered(ResourceType, resource),
        numbered(PatternType, pattern),
        numbered(Operation, operation),
        numbered(PermissionType, permission),
    )


def _check_authorizer(services: Services) -> None:
    if services.authorizer is None:
        raise KafkaError(DISABLED, f"{NO_AUTHORIZER}.")


async def _propagate(services: Services) -> None:
    if services.peers is not None:
        await services.peers.wait_for_images(services.controller.last_change_number, PROPAGATION_S)


def _creation_result(error: KafkaError | None) -> AclCreationResult:
    if error is None:
        return AclCreationResult(error_message="")
    return AclCreationResult(error_code=error.code, error_message=error.message)


def _deletion_result(filter: AclFilter, acls: Sequence[Acl]) -> DeleteAclsFilterResult:
    error = filter.error
    if error is not None:
        return DeleteAclsFilterResult(error_code=error.code, error_message=error.message)
    matching = [
        DeleteAclsMatchingAcl(
            error_message=None, resource_type=acl.resource_type, resource_name=acl.name, pattern_type=acl.pattern_type,
            principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission,
        )
        for acl in paced(acls)
    ]  # fmt: skip
    return DeleteAclsFilterResult(error_message=None, matching_acls=matching)


HANDLERS = {ApiKey.DESCRIBE_ACLS: describe_acls, ApiKey.CREATE_ACLS: create_acls, ApiKey.DELETE_ACLS: delete_acls}

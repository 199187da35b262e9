"""DescribeAcls: list the ACLs that match a filter (KIP-140).

1: pattern types (KIP-290).
3: user resources (KIP-373).

CreateAcls: add ACLs (KIP-140).

1: pattern types (KIP-290).
3: user resources (KIP-373).

DeleteAcls: remove the ACLs that match any of several filters (KIP-140).

1: pattern types (KIP-290).
3: user resources (KIP-373).
"""

from protocol.schema.message import Message, Struct, row


class DescribeAclsRequest(Message, key=29, kind="request", versions="1-3", flexible="2+"):
    resource_type_filter: int = row("int8", "0+")
    resource_name_filter: str | None = row("string", "0+", nullable="0+")
    pattern_type_filter: int = row("int8", "1+", default=3)
    principal_filter: str | None = row("string", "0+", nullable="0+")
    host_filter: str | None = row("string", "0+", nullable="0+")
    operation: int = row("int8", "0+")
    permission_type: int = row("int8", "0+")


class AclDescription(Struct):
    principal: str = row("string", "0+")
    host: str = row("string", "0+")
    operation: int = row("int8", "0+")
    permission_type: int = row("int8", "0+")


class DescribeAclsResource(Struct):
    resource_type: int = row("int8", "0+")
    resource_name: str = row("string", "0+")
    pattern_type: int = row("int8", "1+", default=3)
    acls: list[AclDescription] = row([AclDescription], "0+")


class DescribeAclsResponse(Message, key=29, kind="response", versions="1-3", flexible="2+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
    resources: list[DescribeAclsResource] = row([DescribeAclsResource], "0+")


class AclCreation(Struct):
    resource_type: int = row("int8", "0+")
    resource_name: str = row("string", "0+")
    resource_pattern_type: int = row("int8", "1+", default=3)
    principal: str = row("string", "0+")
    host: str = row("string", "0+")
    operation: int = row("int8", "0+")
    permission_type: int = row("int8", "0+")


class CreateAclsRequest(Message, key=30, kind="request", versions="1-3", flexible="2+", costly=True):
    creations: list[AclCreation] = row([AclCreation], "0+")


class AclCreationResult(Struct):
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")


class CreateAclsResponse(Message, key=30, kind="response", versions="1-3", flexible="2+"):
    throttle_time_ms: int = row("int32", "0+")
    results: list[AclCreationResult] = row([AclCreationResult], "0+")


class DeleteAclsFilter(Struct):
    resource_type_filter: int = row("int8", "0+")
    resource_name_filter: str | None = row("string", "0+", nullable="0+")
    pattern_type_filter: int = row("int8", "1+", default=3)
    principal_filter: str | None = row("string", "0+", nullable="0+")
    host_filter: str | None = row("string", "0+", nullable="0+")
    operation: int = row("int8", "0+")
    permission_type: int = row("int8", "0+")


class DeleteAclsRequest(Message, key=31, kind="request", versions="1-3", flexible="2+", costly=True):
    filters: list[DeleteAclsFilter] = row([DeleteAclsFilter], "0+")


class DeleteAclsMatchingAcl(Struct):
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
    resource_type: int = row("int8", "0+")
    resource_name: str = row("string", "0+")
    pattern_type: int = row("int8", "1+", default=3)
    principal: str = row("string", "0+")
    host: str = row("string", "0+")
    operation: int = row("int8", "0+")
    permission_type: int = row("int8", "0+")


class DeleteAclsFilterResult(Struct):
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = row([DeleteAclsMatchingAcl], "0+")


class DeleteAclsResponse(Message, key=31, kind="response", versions="1-3", flexible="2+"):
    throttle_time_ms: int = row("int32", "0+")
    filter_results: list[DeleteAclsFilterResult] = row([DeleteAclsFilterResult], "0+")

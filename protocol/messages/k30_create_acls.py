"""CreateAcls: add ACLs (KIP-140).

1: pattern types (KIP-290).
3: user resources (KIP-373).
"""

from protocol.schema.message import Message, Struct, row


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

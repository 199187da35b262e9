"""Delegation tokens (KIP-48), which kbroker does not have: the errors of an Apache Kafka without them.

CreateDelegationToken (key 38, versions 1 to 3), RenewDelegationToken (key 39), ExpireDelegationToken (key 40, both
versions 1 and 2) and DescribeDelegationToken (key 41, versions 1 to 3): DELEGATION_TOKEN_AUTH_DISABLED, and to clients
that have not logged in DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import ANONYMOUS
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k38_delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)


def _error(context: RequestContext) -> tuple[ErrorCode, int]:
    """Return the error, and what Apache Kafka sends with it in place of each timestamp."""
    if context.principal == ANONYMOUS:
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, -1
    return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, 0


def create(
    services: Services, context: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    (code, no_time), requester = _error(context), context.principal
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=request.owner_principal_type or requester.type,
        principal_name=request.owner_principal_name or requester.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=no_time,
        expiry_timestamp_ms=no_time,
        max_timestamp_ms=no_time,
    )


def renew(
    services: Services, context: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    code, no_time = _error(context)
    return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=no_time)


def expire(
    services: Services, context: RequestContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    code, no_time = _error(context)
    return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=no_time)


def describe(
    services: Services, context: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=_error(context)[0])


HANDLERS = {
    ApiKey.CREATE_DELEGATION_TOKEN: create,
    ApiKey.RENEW_DELEGATION_TOKEN: renew,
    ApiKey.EXPIRE_DELEGATION_TOKEN: expire,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: describe,
}

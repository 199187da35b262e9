"""Delegation tokens (KIP-48): create, renew, expire and describe them. 2: flexible. 3: the owner (KIP-373)."""

from protocol.schema.message import Message, Struct, row


class CreatableRenewers(Struct):
    principal_type: str = row("string", "0+")
    principal_name: str = row("string", "0+")


class CreateDelegationTokenRequest(Message, key=38, kind="request", versions="1-3", flexible="2+", costly=True):
    owner_principal_type: str | None = row("string", "3+", nullable="3+")
    owner_principal_name: str | None = row("string", "3+", nullable="3+")
    renewers: list[CreatableRenewers] = row([CreatableRenewers], "0+")
    max_lifetime_ms: int = row("int64", "0+")


class CreateDelegationTokenResponse(Message, key=38, kind="response", versions="1-3", flexible="2+"):
    error_code: int = row("int16", "0+")
    principal_type: str = row("string", "0+")
    principal_name: str = row("string", "0+")
    token_requester_principal_type: str = row("string", "3+", ignorable=True)
    token_requester_principal_name: str = row("string", "3+", ignorable=True)
    issue_timestamp_ms: int = row("int64", "0+")
    expiry_timestamp_ms: int = row("int64", "0+")
    max_timestamp_ms: int = row("int64", "0+")
    token_id: str = row("string", "0+")
    hmac: bytes = row("bytes", "0+")
    throttle_time_ms: int = row("int32", "0+")


class RenewDelegationTokenRequest(Message, key=39, kind="request", versions="1-2", flexible="2+"):
    hmac: bytes = row("bytes", "0+")
    renew_period_ms: int = row("int64", "0+")


class RenewDelegationTokenResponse(Message, key=39, kind="response", versions="1-2", flexible="2+"):
    error_code: int = row("int16", "0+")
    expiry_timestamp_ms: int = row("int64", "0+")
    throttle_time_ms: int = row("int32", "0+")


class ExpireDelegationTokenRequest(Message, key=40, kind="request", versions="1-2", flexible="2+"):
    hmac: bytes = row("bytes", "0+")
    expiry_time_period_ms: int = row("int64", "0+")


class ExpireDelegationTokenResponse(Message, key=40, kind="response", versions="1-2", flexible="2+"):
    error_code: int = row("int16", "0+")
    expiry_timestamp_ms: int = row("int64", "0+")
    throttle_time_ms: int = row("int32", "0+")


class DescribeDelegationTokenOwner(Struct):
    principal_type: str = row("string", "0+")
    principal_name: str = row("string", "0+")


class DescribeDelegationTokenRequest(Message, key=41, kind="request", versions="1-3", flexible="2+", costly=True):
    owners: list[DescribeDelegationTokenOwner] | None = row([DescribeDelegationTokenOwner], "0+", nullable="0+")


class DescribedDelegationTokenRenewer(Struct):
    principal_type: str = row("string", "0+")
    principal_name: str = row("string", "0+")


class DescribedDelegationToken(Struct):
    principal_type: str = row("string", "0+")
    principal_name: str = row("string", "0+")
    token_requester_principal_type: str = row("string", "3+")
    token_requester_principal_name: str = row("string", "3+")
    issue_timestamp: int = row("int64", "0+")
    expiry_timestamp: int = row("int64", "0+")
    max_timestamp: int = row("int64", "0+")
    token_id: str = row("string", "0+")
    hmac: bytes = row("bytes", "0+")
    renewers: list[DescribedDelegationTokenRenewer] = row([DescribedDelegationTokenRenewer], "0+")


class DescribeDelegationTokenResponse(Message, key=41, kind="response", versions="1-3", flexible="2+"):
    error_code: int = row("int16", "0+")
    tokens: list[DescribedDelegationToken] = row([DescribedDelegationToken], "0+")
    throttle_time_ms: int = row("int32", "0+")

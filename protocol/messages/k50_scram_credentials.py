"""The SCRAM credentials of users (KIP-554): DescribeUserScramCredentials and AlterUserScramCredentials."""

from protocol.schema.message import Message, Struct, row


class UserName(Struct):
    name: str = row("string", "0+")


class DescribeUserScramCredentialsRequest(Message, key=50, kind="request", versions="0", flexible="0+", costly=True):
    users: list[UserName] | None = row([UserName], "0+", nullable="0+")


class CredentialInfo(Struct):
    mechanism: int = row("int8", "0+")
    iterations: int = row("int32", "0+")


class DescribeUserScramCredentialsResult(Struct):
    user: str = row("string", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
    credential_infos: list[CredentialInfo] = row([CredentialInfo], "0+")


class DescribeUserScramCredentialsResponse(Message, key=50, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = row([DescribeUserScramCredentialsResult], "0+")


class ScramCredentialDeletion(Struct):
    name: str = row("string", "0+")
    mechanism: int = row("int8", "0+")


class ScramCredentialUpsertion(Struct):
    name: str = row("string", "0+")
    mechanism: int = row("int8", "0+")
    iterations: int = row("int32", "0+")
    salt: bytes = row("bytes", "0+")
    salted_password: bytes = row("bytes", "0+")


class AlterUserScramCredentialsRequest(Message, key=51, kind="request", versions="0", flexible="0+", costly=True):
    deletions: list[ScramCredentialDeletion] = row([ScramCredentialDeletion], "0+")
    upsertions: list[ScramCredentialUpsertion] = row([ScramCredentialUpsertion], "0+")


class AlterUserScramCredentialsResult(Struct):
    user: str = row("string", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")


class AlterUserScramCredentialsResponse(Message, key=51, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    results: list[AlterUserScramCredentialsResult] = row([AlterUserScramCredentialsResult], "0+")

"""ApiVersions: the APIs and versions of the broker; the first request of most connections.

3: client software name and version (KIP-511), features (KIP-584) as tagged fields of the response.
4: a feature's minimum version may be 0.
5: the cluster and the node to which the client means to be connected (KIP-1242).

The response header always has version 0, so that a client can decode the response to a version that the broker does not
know.
"""

from protocol.schema.message import Message, Struct, row


class ApiVersionsRequest(Message, key=18, kind="request", versions="0-5", flexible="3+"):
    client_software_name: str = row("string", "3+", ignorable=True)
    client_software_version: str = row("string", "3+", ignorable=True)
    cluster_id: str | None = row("string", "5+", nullable="5+", default=None, ignorable=True)
    node_id: int = row("int32", "5+", default=-1, ignorable=True)


class ApiVersion(Struct):
    api_key: int = row("int16", "0+")
    min_version: int = row("int16", "0+")
    max_version: int = row("int16", "0+")


class SupportedFeatureKey(Struct):
    name: str = row("string", "3+")
    min_version: int = row("int16", "3+")
    max_version: int = row("int16", "3+")


class FinalizedFeatureKey(Struct):
    name: str = row("string", "3+")
    max_version_level: int = row("int16", "3+")
    min_version_level: int = row("int16", "3+")


class ApiVersionsResponse(Message, key=18, kind="response", versions="0-5", flexible="3+"):
    error_code: int = row("int16", "0+")
    api_keys: list[ApiVersion] = row([ApiVersion], "0+")
    throttle_time_ms: int = row("int32", "1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = row([SupportedFeatureKey], "3+", tag=0, ignorable=True)
    finalized_features_epoch: int = row("int64", "3+", tag=1, default=-1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = row([FinalizedFeatureKey], "3+", tag=2, ignorable=True)
    zk_migration_ready: bool = row("bool", "3+", tag=3, ignorable=True)

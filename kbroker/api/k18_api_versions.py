"""ApiVersions (key 18), versions 0 to 5: the APIs and versions of protocol/apis.py, and the features of the cluster.

- From version 3 the client sends its software name and version; an invalid one gets INVALID_REQUEST (KIP-511).
- The response to an unsupported version has version 0, UNSUPPORTED_VERSION and the versions of ApiVersions, so that
  the client can retry (KIP-511).
- Clients are asked for metrics (KIP-714) only if the broker has a page for them: they push as soon as they can.
- With such a page the response is not cached: telemetry needs the client's software from the connection.
- From version 5 on the client can send both the cluster and the node that it means to be connected to. If this is
  another one, it gets REBOOTSTRAP_REQUIRED, and begins again with its bootstrap servers (KIP-1242).
- Features (version 3, KIP-584), supported and finalized. A supported feature with the lowest level 0 is omitted before
  version 4, since older clients cannot parse it. A feature that is finalized at level 0 is always omitted.
"""

import re
from functools import cache

from kbroker.api.context import RequestContext, Services
from kbroker.metadata.features import SUPPORTED_FEATURES
from protocol.apis import APIS, Api, ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k18_api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

FIRST_WITH_CLIENT_SOFTWARE = 3
FIRST_WITH_LEVEL_0 = 4
TELEMETRY_APIS = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})
NO_NODE = -1
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?", re.ASCII)


def handle(services: Services, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if context.version >= FIRST_WITH_CLIENT_SOFTWARE and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if context.version >= FIRST_WITH_CLIENT_SOFTWARE:
        context.connection.client_software = request.client_software_name, request.client_software_version
    if (request.cluster_id is None) != (request.node_id == NO_NODE):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    own = services.metadata.cluster_id, services.node_id
    if request.cluster_id is not None and (request.cluster_id, request.node_id) != own:
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    has_metrics_page = bool(services.config.kbroker_metrics_listener)
    features = services.metadata.features
    return ApiVersionsResponse(
        api_keys=[row for row in _rows() if has_metrics_page or row.api_key not in TELEMETRY_APIS],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=supported.lowest, max_version=supported.highest)
            for name, supported in SUPPORTED_FEATURES.items()
            if supported.lowest > 0 or context.version >= FIRST_WITH_LEVEL_0
        ],
        finalized_features_epoch=features.epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in features.levels.items()
            if level > 0 and name in SUPPORTED_FEATURES
        ],
    )


def is_cacheable(services: Services, request: ApiVersionsRequest) -> bool:
    return not services.config.kbroker_metrics_listener


@cache
def _rows() -> list[ApiVersion]:
    return [_version_range(api) for api in APIS.values()]


def unsupported_version_response() -> ApiVersionsResponse:
    """Return the response, in version 0, to an unsupported version."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_version_range(APIS[ApiKey.API_VERSIONS])]
    )


def _version_range(api: Api) -> ApiVersion:
    return ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)

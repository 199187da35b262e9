"""ApiVersions (key 18), versions 0 to 4: what this broker speaks, from the table in protocol/apis.py.

- From version 3 on a client names itself; a name that is not of Kafka's form is INVALID_REQUEST (KIP-511).
- A version that is not served is answered in version 0 with UNSUPPORTED_VERSION and the versions of
ApiVersions,
  so that the client can ask again.
- Features (KIP-584): transaction.version, supported and finalized. Kafka's other ones (metadata.version, group.version,
  ...) promise what this broker does not do, and clients take their absence for "not supported". A supported feature
  whose lowest level is 0 is not told before version 4, which earlier clients could not read; one that is finalized at
  level 0 is not told at all.
"""

import re

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

FIRST_WITH_SOFTWARE = 3
FIRST_WITH_LEVEL_0 = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?", re.ASCII)


def handle(services: Services, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if context.version >= FIRST_WITH_SOFTWARE and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    features = services.metadata.features
    return ApiVersionsResponse(
        api_keys=[_versions(api) for api in APIS.values()],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=supported.lowest, max_version=supported.highest)
            for name, supported in SUPPORTED_FEATURES.items()
            if supported.lowest > 0 or context.version >= FIRST_WITH_LEVEL_0
        ],
        finalized_features_epoch=features.epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in features.levels.items()
            if level > 0
        ],
    )


def unsupported() -> ApiVersionsResponse:
    """The answer, in version 0, to a version that is not served."""
    own = _versions(APIS[ApiKey.API_VERSIONS])
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])


def _versions(api: Api) -> ApiVersion:
    return ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)

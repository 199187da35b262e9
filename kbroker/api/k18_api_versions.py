"""ApiVersions (key 18), versions 0 to 4: what this broker speaks, from the table in protocol/apis.py.

- From version 3 on a client names itself; a name that is not of Kafka's form is INVALID_REQUEST (KIP-511).
- A version that is not served is answered in version 0 with UNSUPPORTED_VERSION and the versions of
ApiVersions,
  so that the client can ask again.
- No features are named: those that Kafka finalizes (metadata.version, transaction.version, group.version)
promise
  what this broker does not do yet, and clients take their absence for "not supported".
"""

import re

from kbroker.api.services import RequestContext, Services
from protocol.apis import APIS, Api, ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k18_api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

FIRST_WITH_SOFTWARE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?", re.ASCII)


def handle(services: Services, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if context.version >= FIRST_WITH_SOFTWARE and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(api_keys=[_versions(api) for api in APIS.values()])


def unsupported() -> ApiVersionsResponse:
    """The answer, in version 0, to a version that is not served."""
    own = _versions(APIS[ApiKey.API_VERSIONS])
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])


def _versions(api: Api) -> ApiVersion:
    return ApiVersion(api_key=api.key, min_version=api.min, max_version=api.max)

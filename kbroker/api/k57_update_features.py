"""UpdateFeatures (key 57), versions 0 to 2: change the levels of finalized features (KIP-584).

- Either all updates are made or none. The first invalid update determines the error of the whole request.
- Version 0 has allow_downgrade instead of upgrade_type. Kafka ignores it: every update in version 0 is an upgrade.
- Version 1 adds upgrade_type and validate_only. Version 2 has no results per feature in the response.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.features import FeatureUpdate
from protocol.errors import ErrorCode
from protocol.messages.k57_update_features import UpdatableFeatureResult, UpdateFeaturesRequest, UpdateFeaturesResponse

FORWARDED = True
FIRST_WITHOUT_FEATURE_RESULTS = 2


async def handle(services: Services, context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    updates = [FeatureUpdate(row.feature, row.max_version_level, row.upgrade_type) for row in request.feature_updates]
    try:
        await services.controller.update_features(updates, request.validate_only)
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_UPDATE_VERSION:
            raise
        message = f"The update failed for all features since the following feature had an error: {error.message}"
        raise KafkaError(error.code, message) from error
    if context.version >= FIRST_WITHOUT_FEATURE_RESULTS:
        return UpdateFeaturesResponse(error_message=None)
    # Kafka's message without an error is the name of the code.
    results = [UpdatableFeatureResult(feature=update.name, error_message=ErrorCode.NONE.name) for update in updates]
    return UpdateFeaturesResponse(error_message=None, results=results)

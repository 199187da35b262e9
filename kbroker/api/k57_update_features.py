"""UpdateFeatures (key 57), versions 0 to 2: other levels of finalized features (KIP-584).

- All updates are made or none; the first that cannot be is told for the whole request.
- Version 0 has no upgrade type and Kafka takes every update for an upgrade; its permission to downgrade has no effect
there.
- From version 2 on an answer names no feature.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.features import FeatureUpdate
from protocol.errors import ErrorCode
from protocol.messages.k57_update_features import UpdatableFeatureResult, UpdateFeaturesRequest, UpdateFeaturesResponse

FIRST_WITHOUT_RESULTS = 2


async def handle(services: Services, context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    updates = [FeatureUpdate(row.feature, row.max_version_level, row.upgrade_type) for row in request.feature_updates]
    try:
        await services.controller.update_features(updates, request.validate_only)
    except KafkaError as refusal:
        return UpdateFeaturesResponse(error_code=refusal.code, error_message=_told(refusal))
    if context.version >= FIRST_WITHOUT_RESULTS:
        return UpdateFeaturesResponse(error_message=None)
    # Kafka's text for no error is the name of the code.
    results = [UpdatableFeatureResult(feature=update.name, error_message=ErrorCode.NONE.name) for update in updates]
    return UpdateFeaturesResponse(error_message=None, results=results)


def _told(refusal: KafkaError) -> str | None:
    if refusal.code is not ErrorCode.INVALID_UPDATE_VERSION:
        return refusal.message
    return f"The update failed for all features since the following feature had an error: {refusal.message}"

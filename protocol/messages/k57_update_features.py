"""UpdateFeatures: change the levels of finalized features (KIP-584).

1: upgrade types instead of "allow downgrade", and validate only.
2: one error code for the response instead of one for each feature.
"""

from protocol.schema.message import Message, Struct, row


class FeatureUpdateKey(Struct):
    feature: str = row("string", "0+")
    max_version_level: int = row("int16", "0+")
    allow_downgrade: bool = row("bool", "0")
    upgrade_type: int = row("int8", "1+", default=1)


class UpdateFeaturesRequest(Message, key=57, kind="request", versions="0-2", flexible="0+", costly=True):
    timeout_ms: int = row("int32", "0+", default=60000)
    feature_updates: list[FeatureUpdateKey] = row([FeatureUpdateKey], "0+")
    validate_only: bool = row("bool", "1+")


class UpdatableFeatureResult(Struct):
    feature: str = row("string", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")


class UpdateFeaturesResponse(Message, key=57, kind="response", versions="0-2", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
    results: list[UpdatableFeatureResult] = row([UpdatableFeatureResult], "0-1", ignorable=True)

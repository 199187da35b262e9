"""Finalized features (KIP-584): levels of what all brokers of a cluster do, and the rules by which they are changed.

Answers and their texts are those of Apache Kafka 4.3.1. Of its features kbroker has transaction.version only: 0 and 1
are the older protocol of transactions (1 with the flexible records of __transaction_state), 2 is KIP-890's, which
clients use when they find it finalized.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.common import KafkaError
from protocol.errors import ErrorCode

TRANSACTION_VERSION = "transaction.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class SupportedVersionRange(NamedTuple):
    """The levels that this broker can do, and that of a new cluster."""

    lowest: int
    highest: int
    initial: int


SUPPORTED_FEATURES = {TRANSACTION_VERSION: SupportedVersionRange(0, 2, 2)}


class FinalizedFeatures(NamedTuple):
    """What is finalized. `levels` by name, 0 when it is not there; `epoch` grows with each change, by which clients
    tell newer from older."""

    epoch: int
    levels: Mapping[str, int]

    @property
    def transaction_version(self) -> int:
        return self.levels.get(TRANSACTION_VERSION, 0)


INITIAL_FEATURES = FinalizedFeatures(0, {name: supported.initial for name, supported in SUPPORTED_FEATURES.items()})


class FeatureUpdate(NamedTuple):
    name: str
    level: int
    upgrade_type: int


def update_features(
    features: FinalizedFeatures, updates: Sequence[FeatureUpdate], controller_id: int
) -> FinalizedFeatures:
    """The features with all of the updates; of two for one feature the later counts. `controller_id` is told.

    Raises KafkaError (INVALID_UPDATE_VERSION) if any cannot be; then none is to be made. The epoch is the same if
    nothing changes.
    """
    levels = dict(features.levels)
    for update in {update.name: update for update in updates}.values():
        fault = _fault(update, features.levels.get(update.name, 0), controller_id)
        if fault is not None:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid update version {update.level} for feature {update.name}. {fault}",
            )
        levels[update.name] = update.level
    return features if levels == features.levels else FinalizedFeatures(features.epoch + 1, levels)


def _fault(update: FeatureUpdate, current: int, controller_id: int) -> str | None:
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    supported = SUPPORTED_FEATURES.get(update.name)
    if supported is None:
        # Kafka says for level 0, which it takes for "not there", that the feature was not found.
        if update.level == 0:
            return f"Feature {update.name} not found."
        return f"Local controller {controller_id} does not support this feature."
    if not supported.lowest <= update.level <= supported.highest:
        return f"Local controller {controller_id} only supports versions {supported.lowest}-{supported.highest}"
    if update.level < current and update.upgrade_type == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if update.level > current and update.upgrade_type != UPGRADE:
        return "Can't downgrade to a newer version."
    return None

"""Features (KIP-584): the levels that each broker supports, those that the whole cluster uses, and how these change.

A version that writes nodes of a new kind, or other data than the version before, first finalizes a feature: that is
possible when all registered brokers support it. Brokers of the version before ignore nodes of kinds that they do not
know.

The features are those of Kafka:

- transaction.version: levels 0 and 1 are the older transaction protocol (1 with flexible records in
  __transaction_state), level 2 is the protocol of KIP-890, which clients use if it is finalized.
- group.version, share.version, streams.version: at level 0 the APIs of these groups return UNSUPPORTED_VERSION. Brokers
  of an earlier version would ignore their records.
- The levels of WITHOUT_EFFECT change nothing, so that `kafka-features upgrade --release-version` works.

One is kbroker's own, and clients do not see it: kbroker.acls has level 1 as long as there are ACLs, which a broker of
an earlier version would not enforce.

Errors are those of Apache Kafka 4.4.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.common import KafkaError
from protocol.errors import ErrorCode

GROUP_VERSION = "group.version"
TRANSACTION_VERSION = "transaction.version"
SHARE_VERSION = "share.version"
STREAMS_VERSION = "streams.version"
ACLS = "kbroker.acls"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class SupportedVersionRange(NamedTuple):
    """The levels that this broker supports, and the level of a new cluster."""

    lowest: int
    highest: int
    initial: int


SUPPORTED_FEATURES = {
    TRANSACTION_VERSION: SupportedVersionRange(0, 2, 2),
    GROUP_VERSION: SupportedVersionRange(0, 1, 1),
    SHARE_VERSION: SupportedVersionRange(0, 2, 2),
    STREAMS_VERSION: SupportedVersionRange(0, 1, 1),
    "eligible.leader.replicas.version": SupportedVersionRange(0, 1, 1),
    "kraft.version": SupportedVersionRange(0, 1, 0),
    # From 3.3-IV3 to 4.4-IV2.
    "metadata.version": SupportedVersionRange(7, 33, 33),
}
# Features whose level changes nothing, and why.
WITHOUT_EFFECT = {
    "eligible.leader.replicas.version": "kbroker always has eligible leader replicas",
    "kraft.version": "kbroker has no metadata quorum",
    "metadata.version": "kbroker's metadata have no versions of their own",
}


class BrokerFeature(NamedTuple):
    """The levels of a feature that a broker supports, as it registers them."""

    name: str
    lowest: int
    highest: int


# What this broker registers.
OWN_FEATURES = (
    *(BrokerFeature(name, range.lowest, range.highest) for name, range in SUPPORTED_FEATURES.items()),
    BrokerFeature(ACLS, 0, 1),
)
# The features of a version that does not register any.
FORMER_FEATURES = (BrokerFeature(TRANSACTION_VERSION, 0, 2),)


class FinalizedFeatures(NamedTuple):
    """`levels` are by feature name; a missing feature has level 0. `epoch` grows with each change."""

    epoch: int
    levels: Mapping[str, int]

    def level(self, name: str) -> int:
        return self.levels.get(name, 0)

    @property
    def transaction_version(self) -> int:
        return self.level(TRANSACTION_VERSION)


# Those of a cluster whose version did not store any.
FORMER_FINALIZED = FinalizedFeatures(0, {TRANSACTION_VERSION: 2})
# Those of a new cluster.
INITIAL_FEATURES = FinalizedFeatures(
    0, {name: supported.initial for name, supported in SUPPORTED_FEATURES.items() if supported.initial}
)


class UnsupportedFeatures(Exception):
    """The cluster uses levels of features that this broker does not support."""


def unsupported_levels(features: FinalizedFeatures, supported: Sequence[BrokerFeature]) -> str:
    """Return the finalized levels that are higher than those that a broker supports; empty if there are none."""
    highest = {feature.name: feature.highest for feature in supported}
    unsupported = [f"{name} {level}" for name, level in features.levels.items() if level > highest.get(name, 0)]
    return ", ".join(sorted(unsupported))


def check_supported(features: FinalizedFeatures) -> None:
    """Raise UnsupportedFeatures unless this broker supports all finalized levels.

    A broker of an earlier version would ignore data that a later one has written.
    """
    if unsupported := unsupported_levels(features, OWN_FEATURES):
        raise UnsupportedFeatures(
            f"the cluster uses {unsupported}, which this version of kbroker does not support: start "
            "the version that the other brokers have, or downgrade with kafka-features"
        )


class FeatureUpdate(NamedTuple):
    name: str
    level: int
    upgrade_type: int


def with_acls(features: FinalizedFeatures, has_acls: bool) -> FinalizedFeatures:
    """Return the features of a cluster with or without ACLs."""
    if has_acls == bool(features.level(ACLS)):
        return features
    levels = {name: level for name, level in features.levels.items() if name != ACLS}
    return FinalizedFeatures(features.epoch + 1, {**levels, ACLS: 1} if has_acls else levels)


def update_features(
    features: FinalizedFeatures,
    updates: Sequence[FeatureUpdate],
    controller_id: int,
    brokers: Mapping[int, Sequence[BrokerFeature]],
) -> FinalizedFeatures:
    """Return the features after all updates; of two updates of a feature the last applies.

    `brokers`: what the registered brokers support. The epoch stays the same if no level changes. Raises KafkaError
    (INVALID_UPDATE_VERSION) if an update is invalid; its message names the controller, or the broker that lacks it.
    """
    levels = dict(features.levels)
    for update in {update.name: update for update in updates}.values():
        reason = _rejection_reason(update, features.levels.get(update.name, 0), controller_id, brokers)
        if reason is not None:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid update version {update.level} for feature {update.name}. {reason}",
            )
        levels[update.name] = update.level
    return features if levels == features.levels else FinalizedFeatures(features.epoch + 1, levels)


def _rejection_reason(
    update: FeatureUpdate, current_level: int, controller_id: int, brokers: Mapping[int, Sequence[BrokerFeature]]
) -> str | None:
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    if update.name == ACLS or (update.name not in SUPPORTED_FEATURES and update.level == 0):
        # Level 0 means that the feature is to be removed. Kafka has another message for this.
        return f"Feature {update.name} not found."
    supporters = {f"Local controller {controller_id}": OWN_FEATURES}
    supporters |= {f"Broker {broker_id}": tuple(supported) for broker_id, supported in brokers.items()}
    for supporter, supported in supporters.items():
        levels = next((each for each in supported if each.name == update.name), None)
        if levels is None:
            return f"{supporter} does not support this feature."
        if not levels.lowest <= update.level <= levels.highest:
            return f"{supporter} only supports versions {levels.lowest}-{levels.highest}"
    if update.level < current_level and update.upgrade_type == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if update.level > current_level and update.upgrade_type != UPGRADE:
        return "Can't downgrade to a newer version."
    return None

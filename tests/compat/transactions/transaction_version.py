"""Changes the finalized transaction.version of a broker for a test."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from kafka import KafkaAdminClient
from kafka.admin import UpdateFeatureType

from tests.compat.support import eventually

FEATURE = "transaction.version"


@contextmanager
def transaction_version(bootstrap: str, level: int | None) -> Iterator[None]:
    """Finalize this level, and restore the earlier one at the end. None changes nothing."""
    if level is None:
        yield
        return
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        before = finalized_level(admin)
        set_level(admin, level)
        try:
            yield
        finally:
            set_level(admin, before)


def finalized_level(admin: KafkaAdminClient) -> int:
    _, level = admin.describe_features().get(FEATURE, {}).get("finalized", (0, 0))
    return int(level)


def set_level(admin: KafkaAdminClient, level: int) -> None:
    current = finalized_level(admin)
    upgrade_type = UpdateFeatureType.UPGRADE if level > current else UpdateFeatureType.SAFE_DOWNGRADE
    if level != current:
        result = admin.update_features({FEATURE: (upgrade_type, level)})
        assert result[FEATURE] == "OK", result
    eventually(lambda: finalized_level(admin) == level, f"{FEATURE} at {level}")

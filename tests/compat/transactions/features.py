"""The finalized transaction.version of a broker, altered and altered back."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from kafka import KafkaAdminClient
from kafka.admin import UpdateFeatureType

from tests.compat.support import eventually

FEATURE = "transaction.version"


@contextmanager
def transaction_version(bootstrap: str, level: int | None) -> Iterator[None]:
    """None: as it is."""
    if level is None:
        yield
        return
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        before = finalized(admin)
        set_level(admin, level)
        try:
            yield
        finally:
            set_level(admin, before)


def finalized(admin: KafkaAdminClient) -> int:
    _, level = admin.describe_features().get(FEATURE, {}).get("finalized", (0, 0))
    return int(level)


def set_level(admin: KafkaAdminClient, level: int) -> None:
    now = finalized(admin)
    how = UpdateFeatureType.UPGRADE if level > now else UpdateFeatureType.SAFE_DOWNGRADE
    if level != now:
        answer = admin.update_features({FEATURE: (how, level)})
        assert answer[FEATURE] == "OK", answer
    eventually(lambda: finalized(admin) == level, f"{FEATURE} at {level}")

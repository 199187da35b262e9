"""UpdateFeatures, with the errors of Apache Kafka 4.3.1; the next ApiVersions response has the new levels."""

from typing import Any

import pytest

from kbroker.metadata.store import znodes
from protocol.apis import ApiKey
from protocol.messages.k57_update_features import FeatureUpdateKey
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers
from tests.unit.support.memory_disk import MemoryDisk

UPGRADE, SAFE, UNSAFE = 1, 2, 3
FEATURE = "transaction.version"
FAILED = "The update failed for all features since the following feature had an error: Invalid update version "
NEEDS_UPGRADE_TYPE = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe"
)


def update(level: int, upgrade_type: int = UPGRADE, feature: str = FEATURE) -> dict[str, Any]:
    return {"feature": feature, "max_version_level": level, "upgrade_type": upgrade_type}


async def update_features(
    handlers: Handlers, version: int, *updates: dict[str, Any], validate_only: bool = False
) -> Any:
    rows = [row_of(version, fields) for fields in updates]
    fields: dict[str, Any] = {"validate_only": validate_only} if version else {}
    return await handlers.request(ApiKey.UPDATE_FEATURES, version, feature_updates=rows, **fields)


def row_of(version: int, fields: dict[str, Any]) -> Any:
    return FeatureUpdateKey(**{name: value for name, value in fields.items() if version or name != "upgrade_type"})


async def finalized(handlers: Handlers) -> tuple[int, dict[str, int]]:
    response = await handlers.request(ApiKey.API_VERSIONS, 4, client_software_name="test", client_software_version="1")
    return response.finalized_features_epoch, {row.name: row.max_version_level for row in response.finalized_features}


@pytest.mark.parametrize("version", [1, 2])
@async_test
async def test_downgrades_and_an_upgrade(version: int):
    handlers = await start_handlers()
    assert await finalized(handlers) == (0, {FEATURE: 2})
    response = await update_features(handlers, version, update(1, SAFE))
    assert (response.error_code, response.error_message) == (0, None)
    results = [(row.feature, row.error_code, row.error_message) for row in response.results]
    assert results == ([(FEATURE, 0, "NONE")] if version < 2 else [])
    assert await finalized(handlers) == (1, {FEATURE: 1})
    # A feature at level 0 is not listed.
    assert (await update_features(handlers, version, update(0, UNSAFE))).error_code == 0
    assert await finalized(handlers) == (2, {})
    assert (await update_features(handlers, version, update(2))).error_code == 0
    assert await finalized(handlers) == (3, {FEATURE: 2})


@async_test
async def test_version_0_only_upgrades():
    handlers = await start_handlers()
    response = await update_features(handlers, 0, update(1) | {"allow_downgrade": True})
    assert response.error_code == 95
    assert NEEDS_UPGRADE_TYPE in response.error_message
    assert (await update_features(handlers, 0, update(2))).error_code == 0
    assert await finalized(handlers) == (0, {FEATURE: 2})


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ([update(1)], f"1 for feature {FEATURE}. {NEEDS_UPGRADE_TYPE} downgrade."),
        ([update(3)], f"3 for feature {FEATURE}. Local controller 1 only supports versions 0-2"),
        ([update(-1)], f"-1 for feature {FEATURE}. A feature version cannot be less than 0."),
        ([update(1, 0)], f"1 for feature {FEATURE}. The controller does not support the given upgrade type."),
        ([update(1, 4)], f"1 for feature {FEATURE}. The controller does not support the given upgrade type."),
        ([update(1, feature="nope")], "1 for feature nope. Local controller 1 does not support this feature."),
        ([update(0, feature="nope")], "0 for feature nope. Feature nope not found."),
        (
            [update(1, SAFE), update(1, feature="nope")],
            "1 for feature nope. Local controller 1 does not support this feature.",
        ),
    ],
)
@async_test
async def test_invalid_updates_are_rejected(version: int, updates: list[dict[str, Any]], message: str):
    handlers = await start_handlers()
    response = await update_features(handlers, version, *updates)
    assert (response.error_code, response.error_message, response.results) == (95, FAILED + message, [])
    assert await finalized(handlers) == (0, {FEATURE: 2})


@async_test
async def test_a_downgrade_to_a_higher_level_is_rejected():
    handlers = await start_handlers()
    await update_features(handlers, 1, update(1, SAFE))
    response = await update_features(handlers, 1, update(2, SAFE))
    assert response.error_message == f"{FAILED}2 for feature {FEATURE}. Can't downgrade to a newer version."


@async_test
async def test_validate_only_changes_nothing():
    handlers = await start_handlers()
    assert (await update_features(handlers, 1, update(1, SAFE), validate_only=True)).error_code == 0
    assert (await update_features(handlers, 1, update(1), validate_only=True)).error_code == 95
    assert await finalized(handlers) == (0, {FEATURE: 2})


@async_test
async def test_the_last_of_two_updates_of_a_feature_applies():
    handlers = await start_handlers()
    assert (await update_features(handlers, 1, update(0, SAFE), update(1, SAFE))).error_code == 0
    assert await finalized(handlers) == (1, {FEATURE: 1})


@async_test
async def test_levels_are_kept_across_restarts():
    disk = MemoryDisk()
    handlers = await start_handlers(disk)
    await update_features(handlers, 1, update(1, SAFE))
    await handlers.store.close()
    assert await finalized(await start_handlers(disk)) == (1, {FEATURE: 1})


@async_test
async def test_a_cluster_of_a_version_without_features_gets_the_initial_levels():
    disk = MemoryDisk()
    handlers = await start_handlers(disk)
    await handlers.store.session().delete(znodes.FEATURES)
    await handlers.store.close()
    handlers = await start_handlers(disk)
    assert await finalized(handlers) == (0, {FEATURE: 2})
    assert (await update_features(handlers, 1, update(1, SAFE))).error_code == 0
    assert await finalized(handlers) == (1, {FEATURE: 1})

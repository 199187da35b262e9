"""UpdateFeatures beyond the story of tests/compat/wire: levels are stored, and old clusters have none."""

from typing import Any

import pytest

from kbroker.metadata.store import znodes
from protocol.apis import ApiKey
from protocol.messages.k57_update_features import FeatureUpdateKey
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers
from tests.unit.support.memory_disk import MemoryDisk

SAFE = 2
FEATURE = "transaction.version"
INITIAL = {
    FEATURE: 2,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "metadata.version": 33,
    "share.version": 2,
    "streams.version": 1,
}


async def downgrade(handlers: Handlers, feature: str = FEATURE, level: int = 1, **fields: Any) -> int:
    rows = [FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=SAFE)]
    response = await handlers.request(ApiKey.UPDATE_FEATURES, 1, feature_updates=rows, **fields)
    return int(response.error_code)


async def finalized(handlers: Handlers) -> tuple[int, dict[str, int]]:
    response = await handlers.request(ApiKey.API_VERSIONS, 4, client_software_name="test", client_software_version="1")
    return response.finalized_features_epoch, {row.name: row.max_version_level for row in response.finalized_features}


@async_test
async def test_each_change_has_an_epoch():
    handlers = await start_handlers()
    assert await finalized(handlers) == (0, INITIAL)
    assert await downgrade(handlers, validate_only=True) == 0
    assert await finalized(handlers) == (0, INITIAL)
    assert await downgrade(handlers) == 0
    assert await finalized(handlers) == (1, INITIAL | {FEATURE: 1})


@async_test
async def test_levels_are_kept_across_restarts():
    disk = MemoryDisk()
    handlers = await start_handlers(disk)
    await downgrade(handlers)
    await handlers.store.close()
    assert await finalized(await start_handlers(disk)) == (1, INITIAL | {FEATURE: 1})


@async_test
async def test_a_cluster_of_a_version_without_features_has_the_levels_of_that_version():
    disk = MemoryDisk()
    handlers = await start_handlers(disk)
    await handlers.store.session().delete(znodes.FEATURES)
    await handlers.store.close()
    handlers = await start_handlers(disk)
    assert await finalized(handlers) == (0, {FEATURE: 2})
    assert await downgrade(handlers) == 0
    assert await finalized(handlers) == (1, {FEATURE: 1})


@async_test
async def test_levels_without_effect_are_stored_and_reported(caplog: pytest.LogCaptureFixture):
    handlers = await start_handlers()
    assert await downgrade(handlers, "metadata.version", 30) == 0
    assert await finalized(handlers) == (1, INITIAL | {"metadata.version": 30})
    assert "feature without effect feature=metadata.version level=30" in caplog.text

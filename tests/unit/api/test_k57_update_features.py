"""UpdateFeatures: levels go up and down as Kafka 4.3.1 lets them, and are told with the next ApiVersions."""

from typing import Any

import pytest

from kbroker.metadata.store import znodes
from protocol.apis import ApiKey
from protocol.messages.k57_update_features import FeatureUpdateKey
from tests.unit.support.handlers import Handlers, run, start_handlers
from tests.unit.support.memory_disk import MemoryDisk

UPGRADE, SAFE, UNSAFE = 1, 2, 3
FEATURE = "transaction.version"
FAILED = "The update failed for all features since the following feature had an error: Invalid update version "
NOT_WITHOUT = "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe"


def update(level: int, upgrade_type: int = UPGRADE, feature: str = FEATURE) -> dict[str, Any]:
    return {"feature": feature, "max_version_level": level, "upgrade_type": upgrade_type}


async def ask(handlers: Handlers, version: int, *updates: dict[str, Any], validate_only: bool = False) -> Any:
    rows = [row_of(version, fields) for fields in updates]
    fields: dict[str, Any] = {"validate_only": validate_only} if version else {}
    return await handlers.request(ApiKey.UPDATE_FEATURES, version, feature_updates=rows, **fields)


def row_of(version: int, fields: dict[str, Any]) -> Any:
    return FeatureUpdateKey(**{name: value for name, value in fields.items() if version or name != "upgrade_type"})


async def told(handlers: Handlers) -> tuple[int, dict[str, int]]:
    answer = await handlers.request(ApiKey.API_VERSIONS, 4, client_software_name="test", client_software_version="1")
    return answer.finalized_features_epoch, {row.name: row.max_version_level for row in answer.finalized_features}


@pytest.mark.parametrize("version", [1, 2])
def test_down_and_up_again(version: int):
    async def story():
        handlers = await start_handlers()
        assert await told(handlers) == (0, {FEATURE: 2})
        answer = await ask(handlers, version, update(1, SAFE))
        assert (answer.error_code, answer.error_message) == (0, None)
        results = [(row.feature, row.error_code, row.error_message) for row in answer.results]
        assert results == ([(FEATURE, 0, "NONE")] if version < 2 else [])
        assert await told(handlers) == (1, {FEATURE: 1})
        # Level 0 is as good as none.
        assert (await ask(handlers, version, update(0, UNSAFE))).error_code == 0
        assert await told(handlers) == (2, {})
        assert (await ask(handlers, version, update(2))).error_code == 0
        assert await told(handlers) == (3, {FEATURE: 2})

    run(story)


def test_version_0_knows_upgrades_only():
    async def story():
        handlers = await start_handlers()
        answer = await ask(handlers, 0, update(1) | {"allow_downgrade": True})
        assert answer.error_code == 95
        assert NOT_WITHOUT in answer.error_message
        assert (await ask(handlers, 0, update(2))).error_code == 0
        assert await told(handlers) == (0, {FEATURE: 2})

    run(story)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ([update(1)], f"1 for feature {FEATURE}. {NOT_WITHOUT} downgrade."),
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
def test_what_cannot_be(version: int, updates: list[dict[str, Any]], message: str):
    async def story():
        handlers = await start_handlers()
        answer = await ask(handlers, version, *updates)
        assert (answer.error_code, answer.error_message, answer.results) == (95, FAILED + message, [])
        assert await told(handlers) == (0, {FEATURE: 2})

    run(story)


def test_a_downgrade_that_would_be_an_upgrade():
    async def story():
        handlers = await start_handlers()
        await ask(handlers, 1, update(1, SAFE))
        answer = await ask(handlers, 1, update(2, SAFE))
        assert answer.error_message == f"{FAILED}2 for feature {FEATURE}. Can't downgrade to a newer version."

    run(story)


def test_validation_changes_nothing():
    async def story():
        handlers = await start_handlers()
        assert (await ask(handlers, 1, update(1, SAFE), validate_only=True)).error_code == 0
        assert (await ask(handlers, 1, update(1), validate_only=True)).error_code == 95
        assert await told(handlers) == (0, {FEATURE: 2})

    run(story)


def test_of_two_updates_of_a_feature_the_later_counts():
    async def story():
        handlers = await start_handlers()
        assert (await ask(handlers, 1, update(0, SAFE), update(1, SAFE))).error_code == 0
        assert await told(handlers) == (1, {FEATURE: 1})

    run(story)


def test_a_restart_keeps_the_levels():
    async def story():
        disk = MemoryDisk()
        handlers = await start_handlers(disk)
        await ask(handlers, 1, update(1, SAFE))
        await handlers.store.close()
        assert await told(await start_handlers(disk)) == (1, {FEATURE: 1})

    run(story)


def test_a_cluster_from_before_features_gets_the_first_levels():
    async def story():
        disk = MemoryDisk()
        handlers = await start_handlers(disk)
        await handlers.store.session().delete(znodes.FEATURES)
        await handlers.store.close()
        handlers = await start_handlers(disk)
        assert await told(handlers) == (0, {FEATURE: 2})
        assert (await ask(handlers, 1, update(1, SAFE))).error_code == 0
        assert await told(handlers) == (1, {FEATURE: 1})

    run(story)

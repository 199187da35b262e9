"""DescribeClientQuotas: no quotas, and every kind of invalid filter."""

from typing import Any

import pytest

from protocol.apis import ApiKey
from protocol.messages.k48_describe_client_quotas import ComponentData
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
INVALID_REQUEST, UNSUPPORTED_VERSION = 42, 35
COMBINATION = (
    "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
    "filter component."
)

Component = tuple[str, int, str | None]


async def describe(version: int, strict: bool, *components: Component) -> Any:
    rows = [
        ComponentData(entity_type=entity_type, match_type=match_type, match=match)
        for entity_type, match_type, match in components
    ]
    response = await (await start_handlers()).request(
        ApiKey.DESCRIBE_CLIENT_QUOTAS, version, components=rows, strict=strict
    )
    assert response.throttle_time_ms == 0
    return response.error_code, response.error_message, response.entries


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "components",
    [
        [],
        [("user", EXACT, "a")],
        [("user", EXACT, "")],
        [("client-id", DEFAULT, None)],
        [("ip", EXACT, "no address")],
        [("user", SPECIFIED, None), ("client-id", SPECIFIED, None)],
    ],
)
@async_test
async def test_a_valid_filter_matches_no_quotas(version: int, strict: bool, components: list[Component]):
    assert await describe(version, strict, *components) == (0, "", [])


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize(
    ("components", "code", "message"),
    [
        ([("", 9, None)], INVALID_REQUEST, "Invalid empty entity type."),
        ([("USER", 9, None)], UNSUPPORTED_VERSION, "Unsupported entity type USER"),
        (
            [("user", EXACT, None)],
            INVALID_REQUEST,
            "Request specified MATCH_TYPE_EXACT, but set match string to null.",
        ),
        (
            [("ip", DEFAULT, "")],
            INVALID_REQUEST,
            "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
        ),
        (
            [("client-id", SPECIFIED, "a")],
            INVALID_REQUEST,
            "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.",
        ),
        ([("user", 3, None)], INVALID_REQUEST, "Unknown match type 3"),
        ([("user", -1, None)], INVALID_REQUEST, "Unknown match type -1"),
        (
            [("user", EXACT, "a"), ("user", 7, None)],
            INVALID_REQUEST,
            "Entity type user cannot appear more than once in the filter.",
        ),
        ([("ip", EXACT, "a"), ("client-id", DEFAULT, None)], INVALID_REQUEST, COMBINATION),
        ([("user", EXACT, "a"), ("ip", DEFAULT, None)], INVALID_REQUEST, COMBINATION),
        # The first invalid component determines the error.
        ([("foo", EXACT, "a"), ("user", 7, None)], UNSUPPORTED_VERSION, "Unsupported entity type foo"),
        ([("user", 7, None), ("foo", EXACT, "a")], INVALID_REQUEST, "Unknown match type 7"),
    ],
)
@async_test
async def test_an_invalid_filter_is_rejected(version: int, components: list[Component], code: int, message: str):
    assert await describe(version, False, *components) == (code, message, None)

"""DescribeUserScramCredentials: no user has credentials."""

import pytest

from protocol.apis import ApiKey
from protocol.messages.k50_describe_user_scram_credentials import UserName
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers

NOT_FOUND = 91, "Attempt to describe a user credential that does not exist: "
DUPLICATE = 92, "Cannot describe SCRAM credentials for the same user twice in a single request: "


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        (None, []),
        ([], []),
        (["b", "a"], [("b", NOT_FOUND), ("a", NOT_FOUND)]),
        ([""], [("", NOT_FOUND)]),
        (["a", "b", "a", "a"], [("a", DUPLICATE), ("b", NOT_FOUND)]),
    ],
)
@async_test
async def test_no_user_has_credentials(users: list[str] | None, expected: list[tuple[str, tuple[int, str]]]):
    names = users and [UserName(name=name) for name in users]
    response = await (await start_handlers()).request(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=names)
    assert (response.throttle_time_ms, response.error_code, response.error_message) == (0, 0, "")
    assert [(result.user, (result.error_code, result.error_message)) for result in response.results] == [
        (user, (code, text + user)) for user, (code, text) in expected
    ]
    assert all(result.credential_infos == [] for result in response.results)

"""DescribeUserScramCredentials: no user has credentials."""

import pytest

from protocol.apis import ApiKey
from protocol.messages.k50_describe_user_scram_credentials import UserName
from tests.unit.support.handlers import run, start_handlers

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
def test_users(users: list[str] | None, expected: list[tuple[str, tuple[int, str]]]):
    async def story():
        named = users and [UserName(name=name) for name in users]
        response = await (await start_handlers()).request(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=named)
        assert (response.throttle_time_ms, response.error_code, response.error_message) == (0, 0, "")
        assert [(one.user, (one.error_code, one.error_message)) for one in response.results] == [
            (user, (code, text + user)) for user, (code, text) in expected
        ]
        assert all(one.credential_infos == [] for one in response.results)

    run(story)

"""ApiVersions: the table, the client's name, versions that are not served."""

import re

import pytest

from kbroker.api.k18_api_versions import unsupported
from protocol.apis import APIS, ApiKey
from protocol.messages.k18_api_versions import ApiVersion
from tests.unit.support.handlers import run, start_handlers


@pytest.mark.parametrize("version", range(5))
def test_the_table_is_told(version: int):
    async def story():
        fields = {"client_software_name": "a.b-c", "client_software_version": "1.0"} if version >= 3 else {}
        answer = await (await start_handlers()).request(ApiKey.API_VERSIONS, version, **fields)
        assert answer.error_code == 0
        assert [(row.api_key, row.min_version, row.max_version) for row in answer.api_keys] == [
            (api.key, api.min_version, api.max_version) for api in APIS.values()
        ]
        supported = [(row.name, row.min_version, row.max_version) for row in answer.supported_features]
        finalized = [(row.name, row.min_version_level, row.max_version_level) for row in answer.finalized_features]
        # A lowest level of 0 cannot be read by clients of version 3.
        assert supported == ([("transaction.version", 0, 2)] if version == 4 else [])
        assert finalized == ([("transaction.version", 2, 2)] if version >= 3 else [])
        assert answer.finalized_features_epoch == (0 if version >= 3 else -1)

    run(story)


@pytest.mark.parametrize(
    ("name", "software", "code"),
    [("", "", 42), ("a b", "1", 42), ("-a", "1", 42), ("a", "1-", 42), ("a\n", "1", 42), ("é", "1", 42), ("a", "1", 0)],
)
def test_the_clients_name_is_checked(name: str, software: str, code: int):
    async def story():
        handlers = await start_handlers()
        answer = await handlers.request(
            ApiKey.API_VERSIONS, 3, client_software_name=name, client_software_version=software
        )
        assert answer.error_code == code
        assert bool(answer.api_keys) == (code == 0)

    run(story)


def test_a_version_that_is_not_served_learns_which_are():
    answer = unsupported()
    assert answer.error_code == 35
    assert answer.api_keys == [ApiVersion(api_key=18, min_version=0, max_version=4)]


def test_what_is_not_there_is_not_advertised():
    """Only what works: their absence is how clients know."""
    names = {api.name for api in APIS.values()}
    assert not [
        name
        for name in names
        if re.search("Sasl|Token|Share|Streams|ElectLeaders|Alter(ClientQuotas|User|Partition)", name)
    ]

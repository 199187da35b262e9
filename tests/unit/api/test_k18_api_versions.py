"""ApiVersions: the supported APIs, the client's software name, unsupported versions."""

import re

import pytest

from kbroker.api.k18_api_versions import TELEMETRY_APIS, unsupported_version_response
from kbroker.metadata.features import SUPPORTED_FEATURES
from protocol.apis import APIS, ApiKey
from protocol.messages.k18_api_versions import ApiVersion
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers


@pytest.mark.parametrize("version", range(6))
@async_test
async def test_the_supported_apis_and_features(version: int):
    fields = {"client_software_name": "a.b-c", "client_software_version": "1.0"} if version >= 3 else {}
    response = await (await start_handlers()).request(ApiKey.API_VERSIONS, version, **fields)
    assert response.error_code == 0
    assert [(row.api_key, row.min_version, row.max_version) for row in response.api_keys] == [
        (api.key, api.min_version, api.max_version) for api in APIS.values() if api.key not in TELEMETRY_APIS
    ]
    supported = {row.name: (row.min_version, row.max_version) for row in response.supported_features}
    finalized = {row.name: (row.min_version_level, row.max_version_level) for row in response.finalized_features}
    # Clients of version 3 cannot parse a lowest level of 0.
    assert supported == {
        name: (range.lowest, range.highest)
        for name, range in SUPPORTED_FEATURES.items()
        if version >= 4 or (version == 3 and range.lowest)
    }
    initial = {name: (range.initial, range.initial) for name, range in SUPPORTED_FEATURES.items() if range.initial}
    assert finalized == (initial if version >= 3 else {})
    assert response.finalized_features_epoch == (0 if version >= 3 else -1)


@pytest.mark.parametrize(
    ("name", "software", "code"),
    [("", "", 42), ("a b", "1", 42), ("-a", "1", 42), ("a", "1-", 42), ("a\n", "1", 42), ("é", "1", 42), ("a", "1", 0)],
)
@async_test
async def test_the_client_software_name_is_validated(name: str, software: str, code: int):
    handlers = await start_handlers()
    response = await handlers.request(
        ApiKey.API_VERSIONS, 3, client_software_name=name, client_software_version=software
    )
    assert response.error_code == code
    assert bool(response.api_keys) == (code == 0)


def test_the_response_to_an_unsupported_version_has_the_supported_ones():
    response = unsupported_version_response()
    assert response.error_code == 35
    assert response.api_keys == [ApiVersion(api_key=18, min_version=0, max_version=5)]


def test_unsupported_apis_are_not_advertised():
    """Clients take an API that is missing for unsupported."""
    names = {api.name for api in APIS.values()}
    assert not [name for name in names if re.search("Token|AlterPartition$|ReassignmentPlan", name)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, 0),
        ({"cluster_id": None, "node_id": -1}, 0),
        ({"node_id": 2}, 129),
        ({"cluster_id": "another"}, 129),
        ({"cluster_id": ""}, 129),
        ({"node_id": -1}, 42),
        ({"cluster_id": None}, 42),
    ],
)
@async_test
async def test_a_client_of_another_cluster_or_node_begins_again(fields: dict, code: int):
    """KIP-1242: another broker may have got the address that the client knows."""
    handlers = await start_handlers()
    own = {"cluster_id": handlers.services.metadata.cluster_id, "node_id": 1}
    names = {"client_software_name": "a", "client_software_version": "1"}
    response = await handlers.request(ApiKey.API_VERSIONS, 5, **names, **own | fields)
    assert response.error_code == code
    assert bool(response.api_keys) == (code == 0)

"""DeleteAcls: the response of an Apache Kafka without an authorizer."""

import pytest

from protocol.apis import ApiKey
from protocol.errors import MalformedError
from protocol.messages.k31_delete_acls import DeleteAclsFilter, DeleteAclsFilterResult
from tests.unit.api.test_k29_describe_acls import EVERYTHING
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers

DISABLED = DeleteAclsFilterResult(error_code=54, error_message="No Authorizer is configured.")


@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize("count", [0, 1, 3])
@async_test
async def test_security_is_disabled_for_each_filter(version: int, count: int):
    filters = [DeleteAclsFilter(**EVERYTHING)] * count
    response = await (await start_handlers()).request(ApiKey.DELETE_ACLS, version, filters=filters)
    assert response.throttle_time_ms == 0
    assert response.filter_results == [DISABLED] * count


@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize("field", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"])
@async_test
async def test_an_unknown_element_closes_the_connection(version: int, field: str):
    handlers = await start_handlers()
    filters = [DeleteAclsFilter(**EVERYTHING), DeleteAclsFilter(**EVERYTHING | {field: 0})]
    with pytest.raises(MalformedError, match="unknown element"):
        await handlers.request(ApiKey.DELETE_ACLS, version, filters=filters)

"""The tables of errors and of APIs, against other people's."""

from kafka.errors import for_code
from kafka.protocol.api_key import ApiKey as TheirApiKey
from kio.schema.errors import ErrorCode as TheirErrorCode

from protocol.apis import APIS, NEVER, ApiKey
from protocol.errors import ErrorCode
from protocol.schema.message import message_info
from tests.unit.support.random_messages import all_messages


def test_names_and_codes_are_kios() -> None:
    theirs = {code.value: code.name.upper() for code in TheirErrorCode}
    assert {int(code): code.name for code in ErrorCode} == theirs


def test_retriable_errors_are_kios() -> None:
    assert {code.value for code in ErrorCode if code.retriable} == {
        code.value for code in TheirErrorCode if code.retriable
    }
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert not ErrorCode.NONE.retriable
    assert for_code(ErrorCode.NOT_COORDINATOR).retriable


def test_keys_are_kafka_pythons() -> None:
    ours = {key.name.title().replace("_", ""): key.value for key in ApiKey}
    # 4 to 7 were between the brokers and controllers of ZooKeeper's time; Kafka 4.0 removed them.
    assert {key.name: key.value for key in TheirApiKey if key.value not in range(4, 8)}.items() <= ours.items()


def test_every_api_has_its_messages() -> None:
    known = {cls.__name__: message_info(cls) for cls in all_messages()}
    for api in APIS.values():
        for kind in ("Request", "Response"):
            message = known[api.name + kind]
            assert message.key == api.key
            assert message.flexible_from == api.flexible_from
            assert message.max_version >= api.max_version
            assert message.min_version <= api.min_version or api.key is ApiKey.PRODUCE


def test_what_is_advertised_beside_what_is_decoded() -> None:
    assert (APIS[ApiKey.PRODUCE].min_version, APIS[ApiKey.PRODUCE].max_version) == (0, 13)
    assert APIS[ApiKey.INIT_PRODUCER_ID].max_version == 5
    assert APIS[ApiKey.OFFSET_DELETE].flexible_from == NEVER
    assert all(key == api.key for key, api in APIS.items())

"""Which changes of SCRAM credentials are valid. The errors are those of Apache Kafka 4.4.0."""

import pytest

from kbroker.common import KafkaError
from kbroker.metadata.security.scram_control_manager import CredentialChange, altered, check_changes
from kbroker.metadata.store.znodes import decode_user, encode_user, user_name, user_path
from protocol.errors import ErrorCode
from protocol.scram import ScramMechanism, credential

SHA_256, SHA_512 = ScramMechanism
STORED = credential(SHA_256, b"p" * 32, b"salt", 4096)
USERS = {"a": {SHA_256: STORED}}


def upsert(user: str, mechanism: int = 1, iterations: int = 4096, size: int = 32) -> CredentialChange:
    return CredentialChange(user, mechanism, iterations, b"salt", b"p" * size)


def delete(user: str, mechanism: int = 1) -> CredentialChange:
    return CredentialChange(user, mechanism)


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ([upsert("a"), upsert("b", 2, size=64), delete("c")], {"a": 0, "b": 0, "c": ErrorCode.RESOURCE_NOT_FOUND}),
        ([delete("a"), upsert("a")], {"a": ErrorCode.DUPLICATE_RESOURCE}),
        ([upsert("a"), upsert("a", 2, size=64), upsert("a")], {"a": ErrorCode.DUPLICATE_RESOURCE}),
        # The first error of a user stays.
        ([delete("c"), upsert("c")], {"c": ErrorCode.RESOURCE_NOT_FOUND}),
        ([delete("a", 2)], {"a": ErrorCode.RESOURCE_NOT_FOUND}),
        ([delete("a", 0), upsert("b", 3)], dict.fromkeys("ab", ErrorCode.UNSUPPORTED_SASL_MECHANISM)),
        ([upsert("")], {"": ErrorCode.UNACCEPTABLE_CREDENTIAL}),
        ([upsert("a", iterations=4095), upsert("b", iterations=16385), upsert("c", size=0)],
         dict.fromkeys("abc", ErrorCode.UNACCEPTABLE_CREDENTIAL)),
    ],
)  # fmt: skip
def test_changes(changes: list[CredentialChange], codes: dict[str, int]) -> None:
    checked = check_changes(changes, USERS)
    assert {user: each.code if isinstance(each, KafkaError) else 0 for user, each in checked.items()} == codes


def test_credentials_are_stored_by_mechanism() -> None:
    both = altered(upsert("a", 2, 5000, size=64), USERS["a"])
    assert {mechanism: each.iterations for mechanism, each in both.items()} == {SHA_256: 4096, SHA_512: 5000}
    assert altered(delete("a", 2), both) == USERS["a"]
    path = user_path("a/b %ü")
    assert user_name(path) == "a/b %ü"
    data = encode_user(both)
    assert decode_user(path, data) == both
    assert b"pppp" not in data
    assert decode_user(path, b'{"SCRAM-SHA-1024":[1,"00"]}') == {}

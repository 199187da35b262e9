"""Error codes, compared with kio's and kafka-python's."""

from kafka.errors import for_code
from kio.schema.errors import ErrorCode as KioErrorCode

from protocol.errors import ErrorCode, error_name


def test_names_and_codes_are_those_of_kio() -> None:
    kio = {code.value: code.name.upper() for code in KioErrorCode} | {
        # Those of Kafka 4.4.
        134: "GROUP_DELETION_FAILED",
        135: "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED",
        136: "CONTROLLER_ID_NOT_REGISTERED",
    }
    assert {int(code): code.name for code in ErrorCode} == kio


def test_retriable_errors_are_those_of_kio() -> None:
    assert {code.value for code in ErrorCode if code.retriable} == {
        code.value for code in KioErrorCode if code.retriable
    }
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert not ErrorCode.NONE.retriable
    assert for_code(ErrorCode.NOT_COORDINATOR).retriable


def test_names_of_unknown_codes() -> None:
    assert error_name(3) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert error_name(-1) == "UNKNOWN_SERVER_ERROR"
    assert error_name(999) == "error 999"

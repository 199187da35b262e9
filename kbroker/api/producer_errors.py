"""Error codes of fenced producers, by version of the request."""

from kbroker.common import KafkaError
from protocol.errors import ErrorCode


def producer_error(error: KafkaError, version: int, first_version_with_fenced: int) -> ErrorCode:
    """Return the code for the client. In older versions, INVALID_PRODUCER_EPOCH stands for PRODUCER_FENCED."""
    if error.code is ErrorCode.PRODUCER_FENCED and version < first_version_with_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code

"""What older clients are told of a producer that is fenced."""

from kbroker.common import KafkaError
from protocol.errors import ErrorCode


def fenced(refusal: KafkaError, version: int, first: int) -> ErrorCode:
    """The refusal's code. Versions below `first` do not know PRODUCER_FENCED; INVALID_PRODUCER_EPOCH makes their
    clients do the same.
    """
    if refusal.code is ErrorCode.PRODUCER_FENCED and version < first:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return refusal.code

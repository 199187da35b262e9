"""The validation that the ACL requests (keys 29 to 31) share."""

from protocol.errors import MalformedError

UNKNOWN = 0


def reject_unknown(*numbers: int) -> None:
    """Raise MalformedError, which closes the connection, if a resource type, pattern type, operation or permission
    type is UNKNOWN (0).

    Apache Kafka makes this check when it parses a request, before it looks for an authorizer. It accepts numbers that
    belong to no type.
    """
    if UNKNOWN in numbers:
        raise MalformedError("an ACL or an ACL filter has an unknown element")

"""Why a record is not decoded."""


class DecodeError(Exception):
    """A record or a schema cannot be decoded. The message completes the sentence "The value is not decoded: ..."."""

    def within(self, name: str) -> "DecodeError":
        """Return the error with the field in which it happened before the message."""
        text = str(self)
        return DecodeError(f"{name}.{text}" if text.startswith("[") or ": " in text else f"{name}: {text}")

"""The error of archives, and of the data pipeline that writes them."""


class ArchiveError(Exception):
    """An error that a user can act on. Its message is one sentence that says what is wrong, and how to fix it."""

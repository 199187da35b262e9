"""The error of the pipeline's packages."""

from kbroker.archive.errors import ArchiveError


class PipelineError(ArchiveError):
    """An error that a user can act on. Its message is one sentence that says what is wrong, and how to fix it."""

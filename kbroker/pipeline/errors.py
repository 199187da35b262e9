"""Failures of the pipeline that a user can act on."""


class PipelineError(Exception):
    """One clear sentence: what is wrong, and what to do about it where that is known."""

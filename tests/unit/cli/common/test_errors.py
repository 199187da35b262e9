"""The messages that the command line prints for exceptions."""

from kbroker.cli.common.errors import CliError, exception_text
from kbroker.replica.logs.data_directory import ForeignDirectory


def test_exception_texts() -> None:
    assert exception_text(FileNotFoundError(2, "No such file or directory", "x")) == "x: No such file or directory"
    assert exception_text(OSError(111, "Connection refused")) == "Connection refused"
    assert exception_text(RuntimeError()) == "RuntimeError"
    assert exception_text(RuntimeError("why")) == "RuntimeError: why"
    assert exception_text(CliError("so")) == "so"
    assert exception_text(ForeignDirectory("it is another's")) == "it is another's"

"""A user's program under `kbroker pipeline run`: its variables, exit status and traceback. Starts no Spark."""

import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.cli.app import run
from kbroker.cli.pipeline.app import run_file


@pytest.fixture(autouse=True)
def _restore_sys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kbroker"])
    monkeypatch.setattr(sys, "path", list(sys.path))


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "job.py"
    file.write_text(text)
    return str(file)


def test_a_program_finds_its_session_arguments_and_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "beside_the_job.py").write_text("WORD = 'found'\n")
    file = write(tmp_path, "import sys, beside_the_job\nprint(__name__, spark, sys.argv[1:], beside_the_job.WORD)\n")
    assert run_file(file, ["a", "--b"], "the session") == 0
    assert capsys.readouterr().out == "__main__ the session ['a', '--b'] found\n"
    assert sys.argv[0] == file


@pytest.mark.parametrize(
    ("end", "status", "message"),
    [("exit()", 0, ""), ("exit(3)", 3, ""), ("exit(-1)", 255, ""), ("exit('no data')", 1, "no data\n")],
)
def test_the_exit_status_is_that_of_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str, status: int, message: str
):
    assert run_file(write(tmp_path, f"import sys\nsys.{end}\n"), [], None) == status
    assert capsys.readouterr().err == message


def test_an_exception_is_printed_with_the_programs_frames_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = write(tmp_path, "def f():\n    raise ValueError('mine')\n\nf()\n")
    assert run_file(file, [], None) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{file}", line 4, in <module>'
    assert lines[-1] == "ValueError: mine"
    assert not [line for line in lines if "runpy" in line or "run_file" in line]


def test_a_program_that_does_not_compile(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = write(tmp_path, "def f(:\n")
    assert run_file(file, [], None) == 1
    output = capsys.readouterr().err
    assert output.startswith(f'  File "{file}", line 1\n')
    assert "SyntaxError" in output.splitlines()[-1]


def test_ctrl_c_is_raised(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        run_file(write(tmp_path, "raise KeyboardInterrupt\n"), [], None)


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["pipeline", "run", f"{tmp_path}/job.py"]) == 1
    assert capsys.readouterr().err == f"kbroker: {tmp_path}/job.py does not exist\n"


@pytest.mark.parametrize("command", ["run", "fetch"])
def test_without_java_the_error_is_one_sentence(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)
    monkeypatch.setenv("JAVA_HOME", "/gone")
    assert run(["pipeline", command, write(tmp_path, "")]) == 1
    message = "kbroker: Spark requires Java 17 to 22, but JAVA_HOME is /gone, which has no bin/java\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("args", [["--help"], ["pipeline", "run", "--help"], ["archive", "run", "--help"]])
def test_help_does_not_import_spark(args: list[str]):
    """Other packages of the extra and the client library are not imported either: that takes a long time."""
    heavy = "{'pyspark', 'py4j', 'pyarrow', 'matplotlib', 'kafka'}"
    program = f"import sys\nfrom kbroker.cli import main\nmain({args})\nsys.exit(str(sys.modules.keys() & {heavy}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "Usage: kbroker" in done.stdout
    assert done.stderr == "set()\n"

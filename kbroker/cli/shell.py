"""`kbroker version` and `kbroker completion`."""

from typing import Annotated

from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.options import argument

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


def version() -> None:
    """Print the version."""
    from importlib.metadata import version

    print(f"kbroker {version('kbroker')}")


def completion(shell: Annotated[str, argument("SHELL", f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}.")]) -> None:
    """Print the completion script of a shell.

    Example: source <(kbroker completion bash)
    """
    if shell not in SHELLS:
        raise usage_error(f"SHELL must be one of {', '.join(SHELLS)}, not {shell!r}")
    from typer._completion_shared import get_completion_script

    print(get_completion_script(prog_name="kbroker", complete_var="_KBROKER_COMPLETE", shell=shell))

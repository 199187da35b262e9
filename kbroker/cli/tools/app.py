"""`kbroker tools`: the commands and their help."""

from typing import Annotated

import typer

from kbroker.cli.common.options import AsJson, argument, option

app = typer.Typer()


@app.command("frame")
def frame(
    capture: Annotated[str | None, argument("[FRAMES]")] = None,
    file: Annotated[str | None, option("--file FILE", "Read the frames from a file; `-`: standard input.")] = None,
    response: Annotated[
        str | None, option("--response API", "The frames are responses of this API; needs --version.")
    ] = None,
    version: Annotated[int | None, option("--version N", "Version of the responses.", min=0)] = None,
    request: Annotated[
        str | None, option("--request FRAMES", "The frames are the responses to these requests.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print captured requests or responses field by field, with their positions.

    FRAMES is hex or base64; a file may also contain raw bytes. There may be several frames, as on a connection; a
    single frame may lack its size. Requests contain their API and version. Responses do not: pass --response and
    --version, or the requests.

    A damaged frame is printed up to the damage, with its position and what was expected there; the exit status is then
    1. With --json, prints one JSON object per frame.

    Example: kbroker tools frame 00000018000300010000000100026d650000000100066f7264657273

    Example: kbroker tools frame --response Metadata --version 12 --file response.bin
    """
    from kbroker.cli.tools.frame import print_frames, response_source
    from kbroker.cli.tools.frame_fields import read_capture, read_text

    data = read_capture(capture, file)
    source = response_source(response, version, None if request is None else read_text(request))
    raise typer.Exit(1 if print_frames(data, source, as_json) else 0)

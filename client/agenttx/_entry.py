"""The `agenttx` command: hands over to the server's command line where it is installed, and says what is missing where it is not."""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

__all__ = ["main"]

_COMMAND_LINE = "agenttx_server.command_line"
_INSTALL_HINT = "agenttx: the command line is part of the server: pip install 'agenttx[server]'"


def main() -> NoReturn:
    """Run the command line and exit with its code.

    Raises:
        SystemExit: always; 1 with one line on stderr when the extra `agenttx[server]` is not installed.
    """
    try:
        # By name at run time: the SDK never depends on the server, and this wheel holds both roots even when only the
        # SDK's dependencies are installed, so it is a third-party import inside the server that tells the two cases apart.
        command_line = importlib.import_module(_COMMAND_LINE)
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith(
            f"{_COMMAND_LINE.partition('.')[0]}."
        ) and missing.name != _COMMAND_LINE:
            raise  # A module of our own is gone: that is a broken installation, and "install the extra" would mislead.
        sys.exit(f"{_INSTALL_HINT} (missing module: {missing.name})")
    sys.exit(command_line.main())

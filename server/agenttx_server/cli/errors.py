"""What a command raises when it can't be carried out."""

from __future__ import annotations

from agenttx_server.cli.exit_codes import ExitCode

__all__ = ["CommandRefused"]


class CommandRefused(Exception):
    """A command can't be carried out; the message is one line that says what to do."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.REFUSED) -> None:
        super().__init__(message)
        self.exit_code = exit_code

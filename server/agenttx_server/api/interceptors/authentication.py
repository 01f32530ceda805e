"""Says who is calling."""

from __future__ import annotations

from agenttx_server.api.interceptors.call import RpcCall

__all__ = ["ANONYMOUS", "Authentication"]

ANONYMOUS = "anonymous"


class Authentication:
    """Names the caller. Without credentials to check, everybody is the same principal."""

    name = "authentication"

    def enter(self, call: RpcCall) -> None:
        call.principal = ANONYMOUS

    def leave(self, call: RpcCall) -> None:
        pass

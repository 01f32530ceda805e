"""Says who is calling, and whether they may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

from agenttx_server.access import identity
from agenttx_server.access.authenticator import Authenticator, Credentials
from agenttx_server.access.errors import PermissionDenied, Unauthenticated
from agenttx_server.access.identity import Identity
from agenttx_server.api.interceptors.call import CallClass, RpcCall
from agenttx_server.audit.actor import act_as
from agenttx_server.engine.errors import EngineError
from agenttx_server.engine.ports import Clock, StoreUnavailable

__all__ = ["ANONYMOUS", "Authentication"]

ANONYMOUS = identity.ANONYMOUS.principal

HEADER = "authorization"
ALTERNATIVE_NAMES = "x509_subject_alternative_name"
RECHECK_SECONDS = 2.0


@dataclass(slots=True)
class _OpenStream:
    credentials: Credentials
    task: asyncio.Task[object]
    refusal: EngineError | None = None


class Authentication:
    """Finds out who calls, and refuses who may not call this method.

    Every method but the health service's needs an identity: orchestrators ask for health without credentials, and
    learn nothing by it. A method's roles are in its description; one without an entry there is nobody's.

    Streams may be open for days, so their credentials are looked at again (:meth:`recheck_streams`).
    """

    name = "authentication"

    def __init__(self, authenticator: Authenticator | None = None) -> None:
        self._authenticator = authenticator or Authenticator(None, allows_anonymous=True)
        self._streams: dict[RpcCall, _OpenStream] = {}

    def enter(self, call: RpcCall) -> Awaitable[None] | None:
        if call.method.call_class is CallClass.EXEMPT:
            return None
        credentials = Credentials.read(
            [value for name, value in call.context.invocation_metadata() or () if name == HEADER],
            _certificate_names(call) if self._authenticator.knows_certificates else (),
        )
        caller = self._authenticator.known(credentials)
        if caller is None:
            return self._ask(call, credentials)
        self._admit(call, credentials, caller)
        return None

    async def _ask(self, call: RpcCall, credentials: Credentials) -> None:
        self._admit(call, credentials, await self._authenticator.identify(credentials))

    def _admit(self, call: RpcCall, credentials: Credentials, caller: Identity) -> None:
        roles = call.method.roles
        if roles is not None and not caller.roles & roles:
            needed = sorted(role.value for role in roles)
            call.note(principal=caller.principal)
            raise PermissionDenied(
                f"{call.method.label} needs the role {' or '.join(needed)}"
                if needed
                else f"{call.method.label} is open to nobody",
                reason="PERMISSION_DENIED",
                metadata={"method": call.method.label, "needs": ",".join(needed)},
            )
        call.identity = caller
        act_as(caller.principal)
        if call.method.is_stream and credentials.token:
            task = asyncio.current_task()
            assert task is not None
            self._streams[call] = _OpenStream(credentials, task)

    def leave(self, call: RpcCall) -> None:
        if not self._streams:
            return
        stream = self._streams.pop(call, None)
        if stream is None or stream.refusal is None or not isinstance(call.error, asyncio.CancelledError):
            return
        # Somebody else may have cancelled the call too; then it stays cancelled.
        if stream.task.uncancel() == 0:
            call.error = stream.refusal

    async def recheck_streams(self, clock: Clock) -> None:
        """End streams whose credentials have ended since, for as long as this runs."""
        while True:
            await clock.sleep(RECHECK_SECONDS)
            await self.recheck()

    async def recheck(self) -> None:
        """Look once at the credentials of all open streams; those that are no longer good end UNAUTHENTICATED."""
        for call, stream in list(self._streams.items()):
            try:
                caller = await self._authenticator.identify(stream.credentials)
                if call.method.roles is not None and not caller.roles & call.method.roles:
                    raise Unauthenticated("revoked", "the token lost the role that this call needs")
            except Unauthenticated as refused:
                if self._streams.get(call) is stream and stream.refusal is None:
                    stream.refusal = refused
                    stream.task.cancel()
            except (EngineError, StoreUnavailable):
                continue  # Not known now; the next look may tell.


def _certificate_names(call: RpcCall) -> tuple[str, ...]:
    """The subject alternative names of the connection's certificate, which gRPC has checked against its authorities."""
    found = call.context.auth_context().get(ALTERNATIVE_NAMES, ())
    return tuple(name.decode("utf-8", "replace") for name in found)

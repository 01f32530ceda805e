"""JWTs: what is accepted, and the ways in which a token may lie."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from agenttx_server.access.errors import JwtKeysUnavailable, Unauthenticated
from agenttx_server.access.identity import Role
from agenttx_server.access.jwt_keys import JwtKeys, JwtKeysRefused, loader_of, parse_keys
from agenttx_server.access.jwt_verifier import JwtRules, JwtVerifier
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.setting_rules import JWT_ALGORITHMS

RULES = JwtRules("https://id.test", "agenttx", ("RS256", "ES256", "EdDSA"))
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
OTHER = ec.generate_private_key(ec.SECP256R1())


def jwk(key: Any, kid: str, **more: str) -> dict[str, Any]:
    algorithm = {rsa.RSAPrivateKey: "RS256", ec.EllipticCurvePrivateKey: "ES256"}
    name = next((name for kind, name in algorithm.items() if isinstance(key, kind)), "EdDSA")
    found: dict[str, Any] = jwt.get_algorithm_by_name(name).to_jwk(key.public_key(), as_dict=True)
    return found | {"kid": kid, **more}


def without_algorithm(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "alg"}


KEYS = [jwk(RSA, "rsa"), jwk(EC, "ec"), jwk(ED, "ed")]


class Clock:
    """Real time of day, for the library asks for no other; what is kept grows old by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.ahead = 0.0

    def now(self) -> MicrosecondsUtc:
        return MicrosecondsUtc(int((time.time() + self.ahead) * 1e6))

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Issuer:
    """Gives out keys, or fails to."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys = list(keys)
        self.down = False
        self.asked = 0

    async def load(self) -> bytes:
        self.asked += 1
        await asyncio.sleep(0)
        if self.down:
            raise JwtKeysRefused("down")
        return json.dumps({"keys": self.keys}).encode()


async def verifier_of(issuer: Issuer, clock: Clock | None = None, rules: JwtRules = RULES) -> JwtVerifier:
    clock = clock or Clock()
    keys = JwtKeys(issuer.load, clock)
    await keys.start()
    return JwtVerifier(rules, keys, clock)


def token(
    key: Any = EC,
    kid: str | None = "ec",
    alg: str = "ES256",
    headers: dict[str, Any] | None = None,
    **claims: Any,
) -> str:
    said = {
        "iss": "https://id.test",
        "aud": "agenttx",
        "sub": "ann",
        "exp": int(time.time()) + 600,
        "agenttx_roles": ["agent"],
    } | claims
    said = {name: value for name, value in said.items() if value is not None}
    return jwt.encode(said, key, algorithm=alg, headers=({"kid": kid} if kid else {}) | (headers or {}))


async def refusal(verifier: JwtVerifier, sent: str) -> str:
    with pytest.raises(Unauthenticated) as refused:
        await verifier.verify(sent)
    return refused.value.metadata["why"]


@pytest.mark.parametrize(
    ("key", "kid", "alg"), [(RSA, "rsa", "RS256"), (EC, "ec", "ES256"), (ED, "ed", "EdDSA")]
)
async def test_a_token_of_the_issuer_is_who_it_says(key: Any, kid: str, alg: str):
    verifier = await verifier_of(Issuer(*KEYS))
    sent = token(key, kid, alg, agenttx_roles="agent worker billing", agenttx_tools=["mail.*"])
    assert verifier.known(sent) is None
    who = await verifier.verify(sent)
    assert (who.principal, who.roles, who.tools) == ("jwt:ann", {Role.AGENT, Role.WORKER}, ("mail.*",))
    assert verifier.known(sent) is who


EC384, EC521 = (ec.generate_private_key(curve()) for curve in (ec.SECP384R1, ec.SECP521R1))
FITTING = {
    "rsa": (RSA, {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "p256": (EC, {"ES256"}),
    "p384": (EC384, {"ES384"}),
    "p521": (EC521, {"ES512"}),
    "ed": (ED, {"EdDSA"}),
}


@pytest.mark.parametrize("kid", FITTING)
async def test_a_key_that_names_no_algorithm_is_for_each_pinned_one_of_its_type_and_curve(kid: str):
    """Each token is well signed; what is refused is signed by another key, and names this one."""
    own = {key_id: without_algorithm(jwk(key, key_id)) for key_id, (key, _) in FITTING.items()}
    verifier = await verifier_of(Issuer(*own.values()), rules=replace(RULES, algorithms=JWT_ALGORITHMS))
    signers = {name: key for key, names in FITTING.values() for name in names}
    assert signers.keys() == set(JWT_ALGORITHMS)
    accepted = set()
    for name, signer in signers.items():
        try:
            await verifier.verify(token(signer, kid, name))
        except Unauthenticated:
            continue
        accepted.add(name)
    assert accepted == FITTING[kid][1]


async def test_a_key_that_names_no_algorithm_is_for_no_other_than_the_pinned_ones():
    issuer = Issuer(without_algorithm(jwk(RSA, "rsa")))
    verifier = await verifier_of(issuer, rules=replace(RULES, algorithms=("PS256",)))
    await verifier.verify(token(RSA, "rsa", "PS256"))
    for name in ("RS256", "RS384", "PS384", "PS512"):
        assert await refusal(verifier, token(RSA, "rsa", name)) == "invalid"


async def test_a_key_that_names_its_algorithm_is_for_no_other():
    rules = replace(RULES, algorithms=JWT_ALGORITHMS)
    verifier = await verifier_of(Issuer(jwk(RSA, "rsa", alg="PS384")), rules=rules)
    await verifier.verify(token(RSA, "rsa", "PS384"))
    for name in ("RS256", "RS384", "PS256", "PS512"):
        assert await refusal(verifier, token(RSA, "rsa", name)) == "invalid"


def unsigned(**claims: Any) -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    said = {"iss": "https://id.test", "aud": "agenttx", "sub": "ann", "exp": int(time.time()) + 600}
    return f"{part({'alg': 'none', 'kid': 'ec'})}.{part(said | claims)}."


def signed_with_the_public_key() -> str:
    secret = EC.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    body = jwt.decode(token(), options={"verify_signature": False})
    signed = part(json.dumps({"alg": "HS256", "kid": "ec"}).encode()) + "." + part(json.dumps(body).encode())
    mac = jwt.get_algorithm_by_name("HS256")
    # Past the library's own guard against such secrets, which an attacker hasn't.
    import hashlib
    import hmac

    assert mac is not None
    return signed + "." + part(hmac.new(secret, signed.encode(), hashlib.sha256).digest())


def signed(header: Any, claims: Any) -> str:
    """Return a token that the issuer's key signed, whatever it says: an issuer may be talked into much."""

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    body = ".".join(part(json.dumps(value).encode()) for value in (header, claims))
    algorithm = jwt.get_algorithm_by_name("ES256")
    assert algorithm is not None
    return f"{body}.{part(algorithm.sign(body.encode(), EC))}"


def claims(**more: Any) -> dict[str, Any]:
    return {"iss": "https://id.test", "aud": "agenttx", "sub": "ann", "exp": int(time.time()) + 600} | more


GOOD = {"alg": "ES256", "kid": "ec"}
LIES: dict[str, Any] = {
    "unsigned": unsigned,
    "signed with the public key": signed_with_the_public_key,
    "another's key": lambda: token(OTHER),
    "a key of its own in the header": lambda: token(OTHER, headers={"jwk": jwk(OTHER, "ec")}),
    "an address of keys in the header": lambda: token(OTHER, headers={"jku": "https://evil.test/keys"}),
    "no key named": lambda: token(kid=None),
    "an unknown key named": lambda: token(kid="nobody"),
    "a key of another kind named": lambda: token(kid="rsa"),
    "an algorithm that is not pinned": lambda: token(RSA, "rsa", "RS512"),
    "another issuer": lambda: token(iss="https://id.test.evil"),
    "no issuer": lambda: token(iss=None),
    "another audience": lambda: token(aud="billing"),
    "no audience": lambda: token(aud=None),
    "no end": lambda: token(exp=None),
    "an end that is no number": lambda: token(exp="tomorrow"),
    "not yet": lambda: token(nbf=int(time.time()) + 600),
    "nobody": lambda: token(sub=None),
    "an empty name": lambda: token(sub=""),
    "a name with a line's end": lambda: token(sub="ann\nadmin"),
    "a name without end": lambda: token(sub="a" * 200),
    "roles that are no list": lambda: token(agenttx_roles={"agent": True}),
    "tools that are no list": lambda: token(agenttx_tools="*"),
    "something critical": lambda: token(headers={"crit": ["exp"], "exp": 1}),
    "a header nested without end": lambda: base64.urlsafe_b64encode(b"[" * 5000).decode() + ".e30.c2ln",
    "an end beyond all numbers": lambda: token(exp=float("inf")),
    "no token": lambda: "a.b.c",
    "a key's number": lambda: signed(GOOD | {"kid": 0}, claims()),
    "several keys": lambda: signed(GOOD | {"kid": ["ec"]}, claims()),
    "a key of no name": lambda: signed(GOOD | {"kid": None}, claims()),
    "a key's file": lambda: signed(GOOD | {"kid": "../../../../dev/null"}, claims()),
    "a key that ends early": lambda: signed(GOOD | {"kid": "ec\0x"}, claims()),
    "several algorithms": lambda: signed(GOOD | {"alg": ["ES256", "none"]}, claims()),
    "an algorithm in other letters": lambda: signed(GOOD | {"alg": "es256"}, claims()),
    "a header that is no object": lambda: signed([GOOD], claims()),
    "claims that are no object": lambda: signed(GOOD, [claims()]),
    "several issuers": lambda: signed(GOOD, claims(iss=["https://id.test"])),
    "audiences without us": lambda: signed(GOOD, claims(aud=["agenttx.", "agenttx2", "AGENTTX"])),
    "an audience among numbers": lambda: signed(GOOD, claims(aud=[7, "agenttx"])),
    "a number for a name": lambda: signed(GOOD, claims(sub=7)),
    "a name of half a character": lambda: signed(GOOD, claims(sub="ann\ud800")),
    "a name that turns its writing": lambda: signed(GOOD, claims(sub="\u202enna")),
    "a tenant that is nothing": lambda: signed(GOOD, claims(agenttx_tenant=None)),
    "a beginning that is no time": lambda: signed(GOOD, claims(nbf=float("nan"))),
    "a beginning without end": lambda: signed(GOOD, claims(nbf=10**400)),
    "made in the future": lambda: signed(GOOD, claims(iat=int(time.time()) + 600)),
    "an end in words": lambda: signed(GOOD, claims(exp="9" * 5000)),
    "a changed body": lambda: ".".join(
        [*token().split(".")[:1], *token(sub="bob").split(".")[1:2], *token().split(".")[2:]]
    ),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_token_that_lies_is_refused_and_told_no_more(lie: str):
    verifier = await verifier_of(Issuer(*KEYS))
    assert await refusal(verifier, LIES[lie]()) == "invalid"


async def test_one_audience_of_several_may_be_us():
    verifier = await verifier_of(Issuer(*KEYS))
    assert (await verifier.verify(signed(GOOD, claims(aud=["billing", "agenttx"])))).principal == "jwt:ann"


async def test_clocks_may_differ_by_half_a_minute_and_no_more():
    verifier = await verifier_of(Issuer(*KEYS))
    assert await verifier.verify(token(exp=int(time.time()) - 15))
    assert await verifier.verify(token(nbf=int(time.time()) + 15))
    assert await refusal(verifier, token(exp=int(time.time()) - 60)) == "expired"
    assert await refusal(verifier, token(nbf=int(time.time()) + 60)) == "invalid"


async def test_a_token_that_is_known_is_refused_once_it_has_expired():
    clock = Clock()
    verifier = await verifier_of(Issuer(*KEYS), clock)
    sent = token(exp=int(time.time()) + 100)
    await verifier.verify(sent)
    clock.ahead = 200.0
    with pytest.raises(Unauthenticated) as refused:
        verifier.known(sent)
    assert refused.value.metadata["why"] == "expired"


async def test_roles_that_are_others_are_none_here():
    verifier = await verifier_of(Issuer(*KEYS))
    assert (await verifier.verify(token(agenttx_roles=["admin", 7]))).roles == frozenset()
    assert (await verifier.verify(token(agenttx_roles=None))).roles == frozenset()


async def test_a_new_key_is_known_when_a_token_names_it_and_unknown_ones_are_asked_for_seldom():
    issuer, clock = Issuer(jwk(EC, "ec")), Clock()
    verifier = await verifier_of(issuer, clock)
    issuer.keys.append(jwk(OTHER, "new"))
    clock.seconds += 11
    assert await verifier.verify(token(OTHER, "new"))
    asked = issuer.asked
    for number in range(5):
        assert await refusal(verifier, token(kid=f"made up {number}")) == "invalid"
    assert issuer.asked == asked


async def test_a_key_that_is_withdrawn_takes_its_tokens_with_it():
    issuer, clock = Issuer(jwk(EC, "ec"), jwk(OTHER, "other")), Clock()
    verifier = await verifier_of(issuer, clock)
    sent = token()
    await verifier.verify(sent)
    issuer.keys.pop(0)
    clock.seconds += 301
    assert verifier.known(sent) is None
    assert await refusal(verifier, sent) == "invalid"
    assert verifier.known(sent) is None


async def test_while_the_issuer_is_away_its_keys_are_good_for_an_hour():
    issuer, clock = Issuer(*KEYS), Clock()
    verifier = await verifier_of(issuer, clock)
    issuer.down = True
    clock.seconds += 1000
    assert await verifier.verify(token())
    clock.seconds += 3000
    with pytest.raises(JwtKeysUnavailable):
        await verifier.verify(token())
    issuer.down = False
    clock.seconds += 11
    assert await verifier.verify(token())


def test_keys_that_are_no_use_are_passed_over_and_none_is_refused():
    good = jwk(EC, "ec")
    secret = {"kty": "oct", "kid": "s", "k": "c2VjcmV0"}
    kept = parse_keys(
        json.dumps(
            {"keys": [secret, {"kty": "new"}, jwk(RSA, "e", use="enc"), jwk(RSA, "n", alg="none"), 1, good]}
        ).encode()
    )
    assert kept.keys() == {"ec"}
    for content in (b"", b"[]", b'{"keys": []}', b'{"keys": 1}', json.dumps({"keys": [secret]}).encode()):
        with pytest.raises(JwtKeysRefused):
            parse_keys(content)


async def test_keys_come_from_a_file(tmp_path: Path):
    path = tmp_path / "keys.json"
    load = loader_of(str(path))
    with pytest.raises(JwtKeysRefused, match="can't be read"):
        await load()
    path.write_text(json.dumps({"keys": KEYS}))
    assert parse_keys(await load()).keys() == {"rsa", "ec", "ed"}


async def test_the_tenant_is_what_the_issuer_says_and_else_the_default_one():
    verifier = await verifier_of(Issuer(*KEYS))
    who = await verifier.verify(token(agenttx_tenant="acme"))
    assert (who.principal, who.tenant) == ("@acme/jwt:ann", "acme")
    assert (await verifier.verify(token(agenttx_tenant="default"))).principal == "jwt:ann"
    assert (await verifier.verify(token())).tenant == "default"
    # A subject that looks like an owner of another tenant's is still this one's.
    odd = await verifier.verify(token(sub="@acme/ann"))
    assert (odd.principal, odd.tenant) == ("jwt:@acme/ann", "default")


@pytest.mark.parametrize("tenant", ["", "Acme", "acme/x", "@acme", "\uff41cme", 7, ["acme"], {"a": 1}, True])
async def test_what_is_no_tenant_is_refused_and_not_taken_for_the_default_one(tenant: Any):
    verifier = await verifier_of(Issuer(*KEYS))
    assert await refusal(verifier, token(agenttx_tenant=tenant)) == "invalid"

"""Values sealed and opened, and the file of keys."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenttx_server.engine.ports import StoredValueDamaged
from agenttx_server.store.payload_codec import HOLDS_NOTHING, SEALED, PayloadCodec
from agenttx_server.store.payload_keys import PayloadKeys, load_payload_keys
from agenttx_server.store.payload_queries import binding, opened_value, sealed_value

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
KEYS = PayloadKeys("new", {"new": NEW, "old": OLD})
HERE = binding("attempts.output", ["t-1", 3, 1])
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=200)


@given(texts, st.text(max_size=10), st.lists(st.text(max_size=5) | st.integers(), max_size=3))
def test_a_value_is_opened_where_it_was_sealed_and_nowhere_else(text: str, name: str, identity: list[object]):
    codec = PayloadCodec(KEYS)
    bound = binding(name, identity)
    sealed = codec.seal(text, bound)
    assert codec.open(sealed, bound) == text
    if text in HOLDS_NOTHING:
        assert sealed == text
        return
    assert sealed.startswith(f"{SEALED}new:")
    assert len(text) < 4 or text not in sealed
    assert codec.seal(text, bound) != sealed
    for elsewhere in (binding(name + "x", identity), binding(name, [*identity, 1])):
        with pytest.raises(StoredValueDamaged):
            codec.open(sealed, elsewhere)


@given(st.data())
def test_a_value_that_was_changed_anywhere_is_told_and_not_given(data: st.DataObject):
    codec = PayloadCodec(KEYS)
    sealed = codec.seal('{"amount":12}', HERE)
    place = data.draw(st.integers(len(SEALED), len(sealed) - 1))
    changed = data.draw(st.sampled_from("AZaz09+/=:-").filter(lambda sign: sign != sealed[place]))
    with pytest.raises(StoredValueDamaged) as damaged:
        codec.open(sealed[:place] + changed + sealed[place + 1 :], HERE)
    assert "attempts.output of 't-1', '3', '1'" in str(damaged.value)
    assert "amount" not in str(damaged.value)


def test_a_cut_one_and_one_of_another_key_are_told():
    codec = PayloadCodec(KEYS)
    sealed = codec.seal("text", HERE)
    others = PayloadCodec(PayloadKeys("new", {"new": OLD}))
    for broken in (sealed[:40], sealed[:-1], f"{SEALED}new:", f"{SEALED}other:{'A' * 80}", SEALED):
        with pytest.raises(StoredValueDamaged):
            codec.open(broken, HERE)
    with pytest.raises(StoredValueDamaged, match="does not open it"):
        others.open(sealed, HERE)


def test_values_of_before_are_opened_by_their_own_key_and_plain_ones_are_as_they_are():
    of_old = PayloadCodec(PayloadKeys("old", {"old": OLD})).seal("text", HERE)
    assert PayloadCodec(KEYS).open(of_old, HERE) == "text"
    plain = PayloadCodec(PayloadKeys(None, KEYS.keys))
    assert (plain.open(of_old, HERE), plain.seal("text", HERE), plain.open("text", HERE)) == ("text",) * 3


def test_a_process_draws_one_salt_and_another_nonce_for_each_value():
    drawn: list[int] = []

    def random_bytes(count: int) -> bytes:
        drawn.append(count)
        return len(drawn).to_bytes(count, "big")

    codec = PayloadCodec(KEYS, random_bytes)
    parts = [base64.b64decode(codec.seal(str(number), HERE).split(":")[3]) for number in range(20)]
    assert drawn == [16] + [12] * 20
    assert len({part[:16] for part in parts}) == 1
    assert len({part[16:28] for part in parts}) == 20


def test_a_salt_is_drawn_anew_before_nonces_could_meet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agenttx_server.store.payload_codec._VALUES_A_SALT", 3)
    codec = PayloadCodec(KEYS)
    sealed = [codec.seal(str(number), HERE) for number in range(1, 13)]
    salts = [base64.b64decode(text.split(":")[3])[:16] for text in sealed]
    assert max(map(salts.count, salts)) <= 4
    assert len(set(salts)) >= 3
    assert [codec.open(text, HERE) for text in sealed] == [str(number) for number in range(1, 13)]


def test_the_run_that_owns_a_transaction_stays_readable_and_can_not_be_changed():
    codec = PayloadCodec(KEYS)
    text = '{"metadata":[],"policy":{},"run_id":"r-1"}'
    sealed = sealed_value(codec, "transactions.details", ["t-1"], text)
    assert sealed.endswith(' "run_id":"r-1"')
    assert opened_value(codec, "transactions.details", ["t-1"], sealed) == text
    with pytest.raises(StoredValueDamaged):
        opened_value(codec, "transactions.details", ["t-1"], sealed.replace("r-1", "r-2"))


def test_tokens_are_equal_for_equal_values_of_one_key_and_place():
    codec = PayloadCodec(KEYS)
    token = codec.token("v", HERE)
    assert token == PayloadCodec(KEYS).token("v", HERE)
    assert token in codec.tokens("v", HERE)
    assert PayloadCodec(PayloadKeys("old", {"old": OLD})).token("v", HERE) in codec.tokens("v", HERE)
    others = {codec.token("w", HERE), codec.token("v", b"elsewhere"), *codec.tokens("v", HERE)} - {token}
    assert len(others) == 4


# --- the file -----------------------------------------------------------------------------------------


def key_file(folder: Path, text: str) -> Path:
    file = folder / "keys.toml"
    file.write_text(text)
    file.chmod(0o600)
    return file


def encoded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def test_keys_are_read_and_never_shown(tmp_path: Path):
    file = key_file(tmp_path, f'active = "b"\n[keys]\na = "{encoded(OLD)}"\nb = "{encoded(NEW)}"\n')
    keys = load_payload_keys(file)
    assert (keys.active, keys.keys) == ("b", {"a": OLD, "b": NEW})
    assert "\\x01" not in repr(keys)
    assert load_payload_keys(key_file(tmp_path, 'active = "none"\n')) == PayloadKeys(None, {})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("active = ", "is not valid TOML"),
        ("[keys]\n", "`active` is missing"),
        ('active = "a"\n', "not among its keys"),
        ('active = "a"\n[keys]\na = "c2hvcnQ="\n', "is not 32 bytes"),
        (f'active = "a"\n[keys]\na = "{encoded(bytes(32))}"\n', "one byte over and over"),
        (f'active = "a"\n[keys]\na = "{encoded(OLD)}"\nb = "{encoded(OLD)}"\n', "are the same"),
        (f'active = "none"\n[keys]\nnone = "{encoded(OLD)}"\n', "no name of a key"),
        (f'active = "none"\n[keys]\n"a:b" = "{encoded(OLD)}"\n', "no name of a key"),
        ('active = "none"\nkey = 1\n', "unknown key 'key'"),
        ('active = "none"\n[keys]\na = 3\n', "is not 32 bytes"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_one_line_without_a_key(tmp_path: Path, text: str, why: str):
    with pytest.raises(ValueError, match=why) as refused:
        load_payload_keys(key_file(tmp_path, text))
    assert "\n" not in str(refused.value)
    assert "AQID" not in str(refused.value)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path):
    file = key_file(tmp_path, f'active = "a"\n[keys]\na = "{encoded(OLD)}"\n')
    file.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        load_payload_keys(file)

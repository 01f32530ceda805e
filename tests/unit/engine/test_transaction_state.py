"""The status of a transaction moves as the table says and no other way."""

import pytest

from agenttx_server.engine.records import TransactionStatus
from agenttx_server.engine.transaction_state import LEGAL_MOVES, IllegalMove, move

LIFECYCLE = """
ACTIVE            -> EXECUTING COMMITTING ROLLING_BACK
EXECUTING         -> ACTIVE AWAITING_APPROVAL IN_DOUBT ROLLING_BACK COMMITTING
AWAITING_APPROVAL -> EXECUTING ROLLING_BACK
IN_DOUBT          -> ACTIVE EXECUTING ROLLING_BACK
COMMITTING        -> COMMITTED ACTIVE ROLLING_BACK
ROLLING_BACK      -> ACTIVE ROLLED_BACK FAILED
COMMITTED         ->
ROLLED_BACK       ->
FAILED            ->
"""
ALLOWED = {
    (TransactionStatus(line.split()[0]), TransactionStatus(to))
    for line in LIFECYCLE.strip().splitlines()
    for to in line.split()[2:]
}
ALL_MOVES = [(current, to) for current in TransactionStatus for to in TransactionStatus]


@pytest.mark.parametrize(("current", "to"), sorted(ALLOWED))
def test_legal_moves_are_made(current, to):
    assert move(current, to) is to


@pytest.mark.parametrize(("current", "to"), [pair for pair in ALL_MOVES if pair not in ALLOWED])
def test_every_other_move_is_refused_and_leaves_the_state(current, to):
    state = current
    with pytest.raises(IllegalMove) as refused:
        state = move(state, to)
    assert state is current
    assert (refused.value.current, refused.value.to) == (current, to)
    assert str(refused.value) == f"a transaction that is {current} can't become {to}"


def test_every_status_has_its_row_and_terminal_ones_no_way_out():
    assert set(LEGAL_MOVES) == set(TransactionStatus)
    assert {status for status, moves in LEGAL_MOVES.items() if not moves} == {
        status for status in TransactionStatus if status.is_terminal
    }


def test_an_end_can_be_reached_from_everywhere():
    for status in TransactionStatus:
        seen, ahead = {status}, [status]
        while ahead:
            for to in LEGAL_MOVES[ahead.pop()] - seen:
                seen.add(to)
                ahead.append(to)
        assert any(each.is_terminal for each in seen)

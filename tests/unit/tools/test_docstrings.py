from agenttx.tools.docstrings import read_docstring


def test_the_args_section_becomes_arguments_and_the_rest_the_description():
    read = read_docstring("""Charge a card.

    Slow on Sundays.

    Args:
        amount_cents: how much,
            in cents: never negative.
        customer (str, optional): whom.

    Returns:
        {"charge_id"}.
    """)

    assert read.description == 'Charge a card.\n\nSlow on Sundays.\n\nReturns:\n    {"charge_id"}.'
    assert read.arguments == {"amount_cents": "how much, in cents: never negative.", "customer": "whom."}


def test_a_continuation_line_that_looks_like_an_argument_stays_a_continuation():
    read = read_docstring("""Do.

    Args:
        when: one of
            now: at once
            later: some day
        what: the thing.
    """)

    assert read.arguments == {"when": "one of now: at once later: some day", "what": "the thing."}


def test_sphinx_fields_are_read_too():
    read = read_docstring("""Send.

    :param to: who gets it,
        an address
    :param str text: what it says
    :returns: nothing
    """)

    assert read.arguments == {"to": "who gets it, an address", "text": "what it says"}
    assert read.description == "Send.\n\n:returns: nothing"


def test_no_docstring_is_an_empty_description():
    assert read_docstring(None).description == ""
    assert read_docstring(None).arguments == {}

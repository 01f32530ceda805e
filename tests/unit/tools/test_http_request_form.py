"""Templates, and the requests that are made of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenttx_server.http_hosts import HostPattern
from agenttx_server.http_secrets import Secret, Secrets
from agenttx_server.tools.http.answers import NotDone
from agenttx_server.tools.http.request_form import RequestForm, made_ready
from agenttx_server.tools.http.templates import BadTemplate, MissingValue, fill, names_in, value_at

SECRETS = Secrets([Secret("KEY", 'va/lue "with" +quotes', (HostPattern.parse("api.test"),))])


def ready(url="https://api.test/", headers=None, body=None, method="POST", values=None):
    return made_ready(RequestForm(method, url, headers or {}, body), values or {}, SECRETS, "key-1")


def header(outgoing, name):
    return dict(outgoing.headers).get(name)


def test_a_secret_is_encoded_as_its_place_asks_for():
    outgoing = ready(
        "https://api.test/a/${secret.KEY}?k=${secret.KEY}",
        {"X-Key": "Bearer ${secret.KEY}"},
        {"k": "${secret.KEY}", "l": "<${secret.KEY}>"},
    )

    encoded = "va%2Flue%20%22with%22%20%2Bquotes"
    assert outgoing.target.path == f"/a/{encoded}?k={encoded}"
    assert header(outgoing, "X-Key") == 'Bearer va/lue "with" +quotes'
    assert json.loads(outgoing.body) == {"k": 'va/lue "with" +quotes', "l": '<va/lue "with" +quotes>'}
    assert outgoing.secret_headers == {"x-key"}
    assert outgoing.body_has_secret


def test_a_value_keeps_its_type_where_it_stands_alone():
    values = {"response.body.id": 7, "response.body.list": [1, {"a": None}]}
    body = {"id": "${response.body.id}", "text": "no ${response.body.id}", "all": ["${response.body.list}"]}

    outgoing = ready("https://api.test/${response.body.id}", body=body, values=values)

    assert json.loads(outgoing.body) == {"id": 7, "text": "no 7", "all": [[1, {"a": None}]]}
    assert outgoing.target.path == "/7"


@pytest.mark.parametrize("value", ["../../admin", "a/b?c=d#e", "@evil.test", "\\evil", "x y", "%2e%2e"])
def test_a_value_can_not_leave_its_place_in_a_url(value):
    outgoing = ready("https://api.test/things/${response.body.id}/x", values={"response.body.id": value})

    assert outgoing.target.host == "api.test"
    assert outgoing.target.path.startswith("/things/")
    assert outgoing.target.path.endswith("/x")
    assert outgoing.target.path.count("/") == 3
    assert "?" not in outgoing.target.path


@pytest.mark.parametrize("value", ["evil.test", "evil.test:80/", "api.test@evil.test"])
def test_a_value_that_becomes_the_host_is_that_host_and_gets_no_secret(value):
    with pytest.raises(NotDone):
        ready("https://${response.body.id}/${secret.KEY}", values={"response.body.id": value})


def test_what_is_put_in_is_not_read_again():
    values = {"response.body.a": "${secret.KEY} ${response.body.b}"}

    outgoing = ready(body={"a": "${response.body.a}"}, headers={"X": "${response.body.a}"}, values=values)

    assert json.loads(outgoing.body) == {"a": "${secret.KEY} ${response.body.b}"}
    assert header(outgoing, "X") == "${secret.KEY} ${response.body.b}"
    assert not outgoing.body_has_secret


def test_an_escaped_dollar_sign_begins_no_template():
    text = "${$}{secret.KEY}"

    outgoing = ready(f"https://api.test/x?{text}", {"X": text}, {"a": text, "b": "5 ${$}${secret.KEY}"})

    assert outgoing.target.path == "/x?$%7Bsecret.KEY%7D"
    assert header(outgoing, "X") == "${secret.KEY}"
    assert json.loads(outgoing.body) == {"a": "${secret.KEY}", "b": '5 $va/lue "with" +quotes'}
    assert ready(body="${$}").body == b"$"
    assert list(names_in(text)) == []


def test_a_location_is_kept_with_its_secrets_by_name():
    values = {"response.headers.location": "https://api.test/bot${secret.KEY}/42"}
    encoded = "va%2Flue%20%22with%22%20%2Bquotes"

    at = ready("${response.headers.location}/x", values=values)
    within = ready("https://api.test/?of=${response.headers.location}", values=values)

    assert at.target.path == f"/bot{encoded}/42/x"
    assert within.target.path.startswith("/?of=https%3A%2F%2Fapi.test%2Fbotva%252Flue")
    values = {"response.headers.location": "https://evil.test/bot${secret.KEY}/42"}
    with pytest.raises(NotDone, match="may not be sent to"):
        ready("${response.headers.location}", values=values)


def test_other_text_in_braces_is_text():
    outgoing = ready(body="function() { return `${x} ${secretary} ${steps} ${responses.x}`; }")

    assert outgoing.body == b"function() { return `${x} ${secretary} ${steps} ${responses.x}`; }"


@pytest.mark.parametrize(
    "text", ["${secret}", "${secret.}", "${secret.A B}", "${ secret.A}", "${response..a}", "${secret.A"]
)
def test_what_means_to_be_a_template_and_is_none_is_refused(text):
    with pytest.raises(NotDone, match="is no template"):
        ready(body=text)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_request_that_changes_something_has_a_key(method):
    assert header(ready(method=method), "Idempotency-Key") == "key-1"
    assert header(ready(method="GET"), "Idempotency-Key") is None


def test_a_body_says_what_it_is():
    assert header(ready(body={}), "Content-Type") == "application/json"
    assert header(ready(body="a"), "Content-Type") == "text/plain; charset=utf-8"
    assert (
        header(
            ready(body="a=b", headers={"content-type": "application/x-www-form-urlencoded"}), "Content-Type"
        )
        is None
    )
    assert header(ready(), "Content-Type") is None


def test_values_are_found_by_their_path():
    roots = {"response": {"body": {"a": [{"b-c": 1}]}, "headers": {"x": "y"}}}

    assert value_at("response.body.a.0.b-c", roots) == 1
    for name in (
        "response.body.a.1",
        "response.body.a.00",
        "response.body.a.b",
        "response.headers.x.0",
        "other.a",
    ):
        with pytest.raises(MissingValue):
            value_at(name, roots)


@given(st.text())
def test_any_text_is_filled_or_refused_and_never_with_what_was_not_named(text):
    try:
        names = set(names_in(text))
    except BadTemplate:
        return
    asked = set()

    def lookup(name):
        asked.add(name)
        return "*"

    fill(text, lookup)
    assert asked == names
    if not names:
        assert fill(text, lookup) == text

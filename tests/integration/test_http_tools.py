"""The http.* tools in a real server, against a real service."""

import base64
import json
from contextlib import asynccontextmanager

import pytest
from tests.support.http_service import booking_service
from tests.support.running_server import running_server

import agenttx
from agenttx import StepStatus

# Not of a form that is masked wherever it stands.
SECRET = "quiet-words-4711-by-the-river"


@pytest.fixture
def service():
    with booking_service() as service:
        yield service


@pytest.fixture
def keyed_service():
    with booking_service(honours_keys=True) as service:
        yield service


@asynccontextmanager
async def transaction(service, tmp_path, **settings):
    given = {
        "http_allow": ("http://127.0.0.1:*",),
        "http_private_networks": ("127.0.0.1/32",),
        "http_idempotent_hosts": (service.url,) if service.honours_keys else (),
        "http_timeout_seconds": 5.0,
        "rejected_calls": "RETRY_STEP",
    } | settings
    async with running_server(**given) as server, agenttx.AsyncClient(server.server.address) as client:
        tx = await client.transaction(agent_id="http").begin()
        tx.server_client = client
        yield tx


def booking(service, undo=None, **fields):
    return {
        "method": "POST",
        "url": f"{service.url}/bookings",
        "body": {"room": "12"},
        "undo": undo or {"method": "DELETE", "url": service.url + "/bookings/${response.body.id}"},
    } | fields


async def test_a_request_is_undone_with_what_its_answer_said(service, tmp_path):
    async with transaction(service, tmp_path) as tx:
        done = await tx.step("http.request", **booking(service))
        assert done["status"] == 201
        assert done["body"] == {"id": "b-1", "room": "12"}
        assert done["headers"]["location"] == "/bookings/b-1"
        await tx.rewind(1)

    assert service.bookings == {}
    post, delete = service.requests
    assert (delete.method, delete.path) == ("DELETE", "/bookings/b-1")
    assert delete.headers["idempotency-key"] == f"{post.headers['idempotency-key']}.undo"


@pytest.mark.parametrize("url", ["${response.headers.location}", "{base}/bookings/${response.body.id}"])
async def test_an_undo_finds_its_way_by_location_or_id(service, tmp_path, url):
    undo = {"method": "DELETE", "url": url.replace("{base}", service.url)}
    async with transaction(service, tmp_path) as tx:
        await tx.step("http.request", **booking(service, undo))
        await tx.rollback()

    assert service.bookings == {}


async def test_an_undo_may_take_from_the_arguments_and_from_earlier_steps(service, tmp_path):
    async with transaction(service, tmp_path) as tx:
        await tx.step("kv.put", key="room", value="77")
        undo = {
            "method": "POST",
            "url": service.url + "/echo",
            "body": {
                "room": "${arguments.body.room}",
                "said": "at ${steps.1.value}",
                "id": "${response.body.id}",
            },
        }
        await tx.step("http.request", **booking(service, undo, body={"room": "${steps.1.value}"}))
        await tx.rollback()

    assert json.loads(service.requests[-1].body) == {"room": "77", "said": "at 77", "id": "b-1"}


async def test_what_is_gone_already_is_undone(service, tmp_path):
    async with transaction(service, tmp_path) as tx:
        await tx.step("http.request", **booking(service))
        service.bookings.clear()
        assert not (await tx.rollback()).rollback_incomplete


async def test_without_an_undo_the_agent_is_told_what_to_use(service, tmp_path):
    async with transaction(service, tmp_path) as tx:
        outcome = await tx.try_step("http.request", method="POST", url=f"{service.url}/charges", body={})
        assert outcome.status is StepStatus.ROLLBACK_TRIGGERED
        assert outcome.error_category == "missing_argument"
        assert "http.irreversible" in outcome.hint
        assert (await tx.step("http.request", method="GET", url=f"{service.url}/bookings"))["body"] == []
    assert len(service.requests) == 1


async def test_a_refused_request_has_nothing_to_undo_and_names_the_field(service, tmp_path):
    async with transaction(service, tmp_path) as tx:
        outcome = await tx.try_step("http.request", **booking(service, body={"rum": "12"}))

    assert outcome.error_category == "missing_argument"
    assert "room" in outcome.hint
    assert not outcome.rollback_incomplete
    assert [request.method for request in service.requests] == ["POST"]


async def test_a_request_that_reached_nobody_has_nothing_to_undo(service, tmp_path):
    async with transaction(service, tmp_path) as tx:
        outcome = await tx.try_step("http.request", **booking(service, url="http://127.0.0.1:1/bookings"))
        assert outcome.error_category == "connection"
        assert not outcome.rollback_incomplete
        service.next.append(lambda _: (301, {"Location": "/elsewhere"}, b""))
        outcome = await tx.try_step("http.request", **booking(service))
        assert outcome.error_category == "http_client_error"
        assert not outcome.rollback_incomplete
    assert [request.method for request in service.requests] == ["POST"]


async def test_an_undo_that_could_not_be_sent_is_refused_before_anything_happens(service, tmp_path):
    for undo in (
        {"method": "DELETE", "url": "https://elsewhere.test/${response.body.id}"},
        {"method": "DELETE", "url": service.url + "/${respons.body.id}/${response.}"},
        {"method": "DELETE", "url": service.url + "/x", "headers": {"A": "${secret.NOBODY}"}},
        {"method": "DELETE", "url": service.url + "/${arguments.body.none}"},
        {"method": "DELETE", "url": "no url"},
    ):
        async with transaction(service, tmp_path) as tx:
            outcome = await tx.try_step("http.request", **booking(service, undo))
            assert outcome.status is StepStatus.ROLLBACK_TRIGGERED
            assert "undo: " in outcome.hint
    assert service.requests == []


async def test_an_answer_without_what_the_undo_needs_is_a_failure_that_is_held(service, tmp_path):
    undo = {"method": "DELETE", "url": service.url + "/bookings/${response.body.number}"}
    async with transaction(service, tmp_path) as tx:
        outcome = await tx.try_step("http.request", **booking(service, undo))
        assert outcome.error_category == "missing_key"
        assert outcome.rollback_incomplete
        (failed,) = [item async for item in tx.server_client.list_compensations()]
        assert "Undo it by hand" in str(failed)
    assert list(service.bookings) == ["b-1"]


# --- lost answers -------------------------------------------------------------------------


async def test_a_lost_answer_is_asked_for_again_where_keys_are_honoured_and_then_undone(
    keyed_service, tmp_path
):
    service = keyed_service
    service.lose_answer()
    async with transaction(service, tmp_path) as tx:
        outcome = await tx.try_step("http.request", **booking(service))
        assert outcome.error_category == "connection"
        assert not outcome.rollback_incomplete
    assert service.bookings == {}
    assert service.booked == 1
    assert [request.method for request in service.requests] == ["POST", "POST", "DELETE"]


async def test_a_lost_answer_holds_the_rewind_where_nobody_can_know(service, tmp_path):
    service.lose_answer()
    async with transaction(service, tmp_path, compensation_retries=1) as tx:
        outcome = await tx.try_step("http.request", **booking(service))
        assert outcome.rollback_incomplete
        assert "not known" in outcome.compensation_errors[0]
    assert [request.method for request in service.requests] == ["POST"]


async def test_an_undo_that_needs_no_answer_is_sent_after_a_lost_one(service, tmp_path):
    service.lose_answer()
    undo = {"method": "POST", "url": service.url + "/echo", "body": {"cancel": "${idempotency_key}"}}
    async with transaction(service, tmp_path) as tx:
        outcome = await tx.try_step("http.request", **booking(service, undo))
        assert not outcome.rollback_incomplete
    assert [request.path for request in service.requests] == ["/bookings", "/echo"]


async def test_a_request_that_never_happened_is_not_undone_by_doing_it(keyed_service, tmp_path):
    service = keyed_service
    service.answer(500, {"error": "internal"})
    async with transaction(service, tmp_path) as tx:
        outcome = await tx.try_step("http.request", **booking(service))
        assert outcome.error_category == "http_server_error"
        assert not outcome.rollback_incomplete
    assert service.bookings == {}


async def test_an_idempotent_request_is_run_again_under_its_key(keyed_service, tmp_path):
    service = keyed_service
    service.lose_answer(2)
    async with transaction(service, tmp_path) as tx:
        done = await tx.step(
            "http.idempotent", method="POST", url=f"{service.url}/charges", body={"cents": 5}
        )
        assert done["body"] == {"id": "c-1"}
        await tx.commit()
    assert service.charges == [{"cents": 5}]
    assert len({request.headers["idempotency-key"] for request in service.requests}) == 1


async def test_a_post_is_idempotent_only_where_the_settings_say_so(service, tmp_path):
    async with transaction(service, tmp_path) as tx:
        outcome = await tx.try_step("http.idempotent", method="POST", url=f"{service.url}/charges", body={})
        assert outcome.error_category == "invalid_value"
        done = await tx.step("http.idempotent", method="PUT", url=f"{service.url}/labels/a", body=[1])
        assert done["body"] == [1]
    assert service.charges == []


@pytest.mark.parametrize("how", ["lost", "200", "303", "500", "502"])
async def test_an_irreversible_request_whose_answer_is_lost_is_in_doubt(service, tmp_path, how):
    if how == "lost":
        service.lose_answer()
    else:
        service.answer(int(how))
    async with transaction(service, tmp_path) as tx:
        request = {"method": "POST", "url": f"{service.url}/charges", "body": {}, "expect": [201]}
        outcome = await tx.try_step("http.irreversible", **request)
        assert outcome.status is StepStatus.IN_DOUBT
    assert len(service.requests) == 1


async def test_an_irreversible_request_that_is_refused_failed(service, tmp_path):
    service.answer(402, {"error": {"message": "Card declined", "code": "card_declined"}})
    async with transaction(service, tmp_path) as tx:
        outcome = await tx.try_step("http.irreversible", method="POST", url=f"{service.url}/charges", body={})
    assert outcome.status is StepStatus.ROLLBACK_TRIGGERED
    assert "Card declined" in outcome.hint


# --- failures -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "category"),
    [
        (400, None, "http_client_error"),
        (401, None, "authentication"),
        (403, None, "permission_denied"),
        (404, {"detail": "Not found."}, "missing_record"),
        (418, "short and stout", "http_client_error"),
        (302, None, "http_client_error"),
    ],
)
async def test_a_status_becomes_a_category(service, tmp_path, status, body, category):
    service.answer(status, body)
    async with transaction(service, tmp_path) as tx:
        outcome = await tx.try_step("http.get", url=f"{service.url}/bookings")
    assert outcome.error_category == category


async def test_a_field_that_a_problem_names_leads_to_the_step_that_made_it(service, tmp_path):
    problem = {"type": "about:blank", "errors": [{"field": "customer_id", "message": "does not exist"}]}
    service.next.append(
        lambda _: (422, {"Content-Type": "application/problem+json"}, json.dumps(problem).encode())
    )
    async with transaction(service, tmp_path, rejected_calls="BACKTRACK") as tx:
        await tx.step("kv.put", key="customer_id", value="c-9")
        await tx.step("kv.put", key="other", value=1)
        body = {"customer_id": "${steps.1.value}", "room": "1"}
        outcome = await tx.try_step("http.request", **booking(service, body=body))
    assert outcome.error_category == "missing_record"
    assert outcome.hint.startswith("Hint: customer_id does not exist")
    assert outcome.rollback_to_step == 1


async def test_an_expected_status_is_a_success(service, tmp_path):
    async with transaction(service, tmp_path) as tx:
        done = await tx.step("http.get", url=f"{service.url}/nothing", expect=[404])
        assert done["status"] == 404
        outcome = await tx.try_step("http.get", url=f"{service.url}/bookings", expect=[404])
        assert outcome.error_category == "http_client_error"


async def test_a_service_that_asks_for_patience_gets_it(service, tmp_path):
    service.answer(429, None, Retry_After="0")
    service.answer(429, None, Retry_After="1")
    async with transaction(service, tmp_path) as tx:
        done = await tx.step("http.request", **booking(service))
        assert done["status"] == 201
    assert len(service.requests) == 3


async def test_a_service_that_asks_for_more_patience_than_there_is_is_named_to_the_agent(service, tmp_path):
    service.answer(429, None, Retry_After="3000")
    async with transaction(service, tmp_path) as tx:
        outcome = await tx.try_step("http.request", **booking(service))
    assert outcome.error_category == "rate_limited"
    assert "3000 s" in outcome.hint


async def test_a_read_is_tried_again_after_a_server_error(service, tmp_path):
    service.answer(500)
    service.answer(503)
    async with transaction(service, tmp_path) as tx:
        assert (await tx.step("http.get", url=f"{service.url}/bookings"))["body"] == []


async def test_a_host_that_is_not_allowed_is_refused_and_so_is_an_address_inside(service, tmp_path):
    async with transaction(service, tmp_path) as tx:
        outcome = await tx.try_step("http.get", url="https://example.com/")
        assert outcome.error_category == "permission_denied"
    async with transaction(service, tmp_path, http_private_networks=()) as tx:
        outcome = await tx.try_step("http.get", url=f"{service.url}/bookings")
        assert outcome.error_category == "permission_denied"
    assert service.requests == []


async def test_without_allowed_hosts_there_are_no_http_tools(service, tmp_path):
    async with transaction(service, tmp_path, http_allow=()) as tx:
        names = [tool.name async for tool in tx.server_client.tools()]
        assert not [name for name in names if name.startswith("http")]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "b\r\nX-Injected: 1"}, {"X-A": "b\nc"}, {"X-A\r\nX-B": "c"}, {"X A": "b"}, {"": "b"}, {"X-A": "b\0"},
        {"Host": "other.test"}, {"Content-Length": "0"}, {"Transfer-Encoding": "chunked"}, {"Idempotency-Key": "mine"},
        {"X-A": "ä"}, {"X-A": "b" * 9000},
    ],
)  # fmt: skip
async def test_no_header_is_smuggled_in(service, tmp_path, headers):
    async with transaction(service, tmp_path) as tx:
        outcome = await tx.try_step("http.get", url=f"{service.url}/echo", headers=headers)
    assert outcome.error_category == "invalid_value"
    assert service.requests == []


async def test_a_header_taken_from_an_answer_is_checked_too(service, tmp_path):
    undo = {"method": "POST", "url": service.url + "/echo", "headers": {"X-Room": "${response.body.room}"}}
    async with transaction(service, tmp_path, compensation_retries=1) as tx:
        await tx.step("http.request", **booking(service, undo, body={"room": "1\r\nX-Injected: 1"}))
        assert (await tx.rollback()).rollback_incomplete
    assert len(service.requests) == 1


# --- secrets ------------------------------------------------------------------------------


@pytest.fixture
def secrets(tmp_path, service):
    path = tmp_path / "secrets.toml"
    path.write_text(
        f'[KEY]\nvalue = "{SECRET}"\nhosts = ["{service.url}"]\n'
        f'[OTHER]\nvalue = "another-secret"\nhosts = ["api.example.com"]\n'
    )
    path.chmod(0o600)
    return path


async def test_a_secret_reaches_the_service_and_nothing_that_is_kept(service, tmp_path, secrets):
    data_dir = tmp_path / "data"
    async with transaction(service, tmp_path, http_secrets_file=secrets, data_dir=data_dir) as tx:
        done = await tx.step(
            "http.get",
            url=service.url + "/echo?key=${secret.KEY}",
            headers={"Authorization": "Bearer ${secret.KEY}"},
        )
        undo = {"method": "POST", "url": service.url + "/echo", "body": {"key": "${secret.KEY}"}}
        await tx.step("http.request", **booking(service, undo, body={"room": "1", "key": "${secret.KEY}"}))
        await tx.commit()

    assert service.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert service.requests[0].path == f"/echo?key={SECRET}"
    assert json.loads(service.requests[1].body)["key"] == SECRET
    assert done["body"]["headers"]["authorization"] == "Bearer ***"
    assert done["url"].endswith("/echo?key=***")
    kept = b"".join(path.read_bytes() for path in data_dir.rglob("*") if path.is_file())
    assert b"${secret.KEY}" in kept
    assert SECRET.encode() not in kept


async def test_a_secret_that_an_error_holds_is_masked(service, tmp_path, secrets):
    service.answer(400, {"error": {"message": f"the key {SECRET} has expired"}})
    data_dir = tmp_path / "data"
    async with transaction(service, tmp_path, http_secrets_file=secrets, data_dir=data_dir) as tx:
        headers = {"Authorization": "${secret.KEY}"}
        outcome = await tx.try_step("http.get", url=service.url + "/echo", headers=headers)
        assert "has expired" in outcome.hint
        assert SECRET not in outcome.hint
    kept = b"".join(path.read_bytes() for path in data_dir.rglob("*") if path.is_file())
    assert SECRET.encode() not in kept


@pytest.mark.parametrize(
    "fields",
    [
        {"headers": {"Authorization": "${secret.OTHER}"}},
        {"headers": {"Authorization": "${secret.NONE}"}},
        {"headers": {"Authorization": "${secret.}"}},
        {"url": "https://api.example.com${secret.OTHER}/"},
        {"url": "https://${secret.OTHER}/"},
    ],
)
async def test_a_secret_goes_nowhere_else(service, tmp_path, secrets, fields):
    async with transaction(service, tmp_path, http_secrets_file=secrets) as tx:
        outcome = await tx.try_step("http.get", **({"url": service.url + "/echo"} | fields))
    assert outcome.error_category in ("permission_denied", "invalid_value")
    assert "another-secret" not in outcome.hint
    assert service.requests == []


async def test_an_answer_that_holds_a_template_gets_nothing_put_in(service, tmp_path, secrets):
    undo = {"method": "POST", "url": service.url + "/echo", "body": {"room": "${response.body.room}"}}
    room = "$${secret.KEY}"
    service.next.append(lambda _: (201, {"Content-Type": "application/json"}, b'{"room": "${secret.KEY}"}'))
    async with transaction(service, tmp_path, http_secrets_file=secrets) as tx:
        await tx.step("http.request", **booking(service, undo, body={"room": room[:4]}))
        await tx.rollback()
    assert json.loads(service.requests[-1].body) == {"room": "${secret.KEY}"}


def kept_in(data_dir):
    return b"".join(path.read_bytes() for path in data_dir.rglob("*") if path.is_file())


@pytest.mark.parametrize("location", ["42", "{secret}/42"])
async def test_a_location_below_a_secret_is_kept_without_it_and_undone(service, tmp_path, secrets, location):
    location = location.replace("{secret}", f"/bot{SECRET}/bookings")
    service.answer(201, {}, Location=location)
    service.next += [lambda _: (400, {}, b"not yet")] * 10
    undo = {"method": "DELETE", "url": "${response.headers.location}"}
    url = service.url + "/bot${secret.KEY}/bookings/"
    data_dir = tmp_path / "data"
    async with transaction(service, tmp_path, http_secrets_file=secrets, data_dir=data_dir) as tx:
        await tx.step("http.request", **booking(service, undo, url=url))
        await tx.rewind(1)
        (compensation,) = [one async for one in tx.server_client.list_compensations(tx.transaction_id)]
        assert SECRET not in json.dumps(compensation.arguments)
        assert "/bot${secret.KEY}/bookings/42" in json.dumps(compensation.arguments)
        service.next.clear()
        await tx.server_client.retry_compensation(tx.transaction_id, compensation.compensation_id)
        assert [one async for one in tx.server_client.list_compensations(tx.transaction_id)] == []
    assert len(service.requests) >= 3
    assert {request.path for request in service.requests[1:]} == {f"/bot{SECRET}/bookings/42"}
    assert SECRET.encode() not in kept_in(data_dir)


async def test_an_undo_that_would_need_a_masked_value_is_held(service, tmp_path, secrets):
    service.answer(201, {"id": f"of-{SECRET}"})
    async with transaction(service, tmp_path, http_secrets_file=secrets) as tx:
        outcome = await tx.try_step("http.request", **booking(service))
    assert outcome.rollback_incomplete
    assert [request.method for request in service.requests] == ["POST"]


async def test_a_secret_in_bytes_is_masked(service, tmp_path, secrets):
    service.next.append(lambda seen: (200, {}, b"\0" + seen.headers["authorization"].encode() + b"\0"))
    async with transaction(service, tmp_path, http_secrets_file=secrets) as tx:
        headers = {"Authorization": "Bearer ${secret.KEY}"}
        done = await tx.step("http.get", url=service.url + "/echo", headers=headers)
    assert base64.b64decode(done["body_base64"]) == b"\0Bearer ***\0"


async def test_a_template_that_an_earlier_step_answered_is_data(service, tmp_path, secrets):
    page = {
        "text": "nice ${secret.KEY} day",
        "end": "$",
        "rest": "{secret.KEY}",
        "all": [{"a": "${idempotency_key}"}],
    }
    service.answer(200, page)
    async with transaction(service, tmp_path, http_secrets_file=secrets) as tx:
        page_ref = "${steps.1.body"
        await tx.step("http.get", url=service.url + "/echo")
        body = {
            "room": "12",
            "key": "${secret.KEY}",
            "whole": page_ref + ".text}",
            "within": "<${secret.KEY} " + page_ref + ".text}>",
            "joined": page_ref + ".end}" + page_ref + ".rest}",
            "escaped": "$${secret.KEY}",
            "object": page_ref + "}",
        }
        undo = {
            "method": "POST",
            "url": service.url + "/echo",
            "body": {"of": "${arguments.body.whole}"} | body,
        }
        await tx.step("http.request", **booking(service, undo, body=body))
        await tx.step("http.irreversible", method="POST", url=service.url + "/echo", body=page_ref + ".text}")
        await tx.rewind(2, accept_irreversible=True)
    sent = {
        "room": "12",
        "key": SECRET,
        "whole": page["text"],
        "within": f"<{SECRET} {page['text']}>",
        "joined": "${secret.KEY}",
        "escaped": "${secret.KEY}",
        "object": page,
    }
    _, post, charge, undone = service.requests
    assert json.loads(post.body) == sent
    assert charge.body == page["text"].encode()
    assert json.loads(undone.body) == sent | {"of": page["text"]}

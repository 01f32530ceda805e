"""The page about HTTP requests holds: its request is made and undone, its file of secrets is read."""

import json
import re
from pathlib import Path

from tests.support.http_service import booking_service
from tests.support.running_server import running_server

import agenttx

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "http-tool.md").read_text()


def example(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


async def test_the_request_on_the_page_is_made_and_undone(tmp_path):
    (tmp_path / "booking").write_text("token-of-the-page\n")
    with booking_service() as service:
        secrets = (
            example("toml").replace("/run/secrets/booking", "booking").replace("api.example.com", service.url)
        )
        (tmp_path / "secrets.toml").write_text(secrets)
        request = json.loads(example("json").replace("https://api.example.com", service.url))
        settings = {
            "http_allow": (service.url,),
            "http_private_networks": ("127.0.0.1/32",),
            "http_secrets_file": tmp_path / "secrets.toml",
        }
        async with running_server(**settings) as server, agenttx.AsyncClient(server.address) as client:
            tx = await client.transaction(agent_id="reader").begin()
            await tx.step("kv.put", key="a", value=1)
            await tx.step("kv.put", key="b", value=1)
            service.answer(200, {"id": "g-1"})
            await tx.step("http.get", url=f"{service.url}/guests/g-1")
            booked = await tx.step("http.request", **request)
            assert booked["body"] == {"id": "b-1", "room": "12", "guest": "g-1"}
            await tx.rollback()

        assert service.bookings == {}
        _, post, delete = service.requests
        assert post.headers["authorization"] == delete.headers["authorization"] == "Bearer token-of-the-page"

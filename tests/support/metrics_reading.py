"""Metrics of a server as a scraper gets them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from agenttx_server.listen_address import ListenAddress

__all__ = ["Scrape", "exchange", "get", "scrape"]

SECONDS = 20.0


@dataclass(frozen=True)
class Scrape:
    """The samples of one scrape; ``text`` is what the server sent."""

    text: str
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    def value(self, name: str, **labels: str) -> float:
        """Return the one sample with this name and exactly these labels; KeyError if there is none."""
        return self.samples[name, frozenset(labels.items())]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with this name and at least these labels; 0 if there is none."""
        wanted = set(labels.items())
        return sum(value for (found, at), value in self.samples.items() if found == name and wanted <= at)

    def labels_of(self, name: str, label: str) -> set[str]:
        """Return the values that a label has in the samples of this name."""
        return {dict(at)[label] for found, at in self.samples if found == name}


async def exchange(address: ListenAddress, request: bytes) -> bytes:
    """Send bytes and return all that is answered until the server closes."""
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()


async def get(address: ListenAddress, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Return the status and the body of an answer."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: test",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    answer = await exchange(address, "\r\n".join([*lines, "", ""]).encode())
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split()[1]), body


def read(text: str) -> Scrape:
    """Read what a server sent."""
    samples = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return Scrape(text, samples)


async def scrape(address: ListenAddress, having: str = "") -> Scrape:
    """Return what a server's metrics are now, or once there is a sample with a name."""
    async with asyncio.timeout(SECONDS):
        while True:
            status, body = await get(address, "/metrics")
            assert status == 200, body
            found = read(body)
            if not having or any(name == having for name, _ in found.samples):
                return found
            await asyncio.sleep(0.2)  # it is read anew once a second

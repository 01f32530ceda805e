"""Requests to other services: ``http.*``."""

from agenttx_server.tools.http.http_client import HttpClient, HttpLimits
from agenttx_server.tools.http.http_tools import HttpTools

__all__ = ["HttpClient", "HttpLimits", "HttpTools"]

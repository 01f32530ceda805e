"""The Model Context Protocol, outwards: transactions as tools of an MCP server, for clients such as Claude.

A client of the gRPC API like any other: everything here goes through the SDK, and nothing is remembered
that the server behind it does not know, but which answers its callers have seen.
"""

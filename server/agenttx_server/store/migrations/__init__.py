"""Versions of the schema; run by :mod:`agenttx_server.store.migrating`, never by hand."""

"""Runs of pipelines: roots as transactions, calls as steps, records kept with the steps that make them.

The rules by which records flow are :mod:`agenttx_server.lineage`'s. docs/decisions/0023 has what is durable when.
"""

"""The domain: transactions, their dependency graphs, decisions and undo.

Knows no gRPC and no SQL, and has no clock and no randomness of its own; what it
needs of the world comes through the protocols of :mod:`.ports`.
"""

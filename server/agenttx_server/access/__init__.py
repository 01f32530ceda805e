"""Who calls and what they may: identities, tokens, and how credentials become identities.

Knows no gRPC and no SQL: ``api`` hands it what a call carried, ``store`` keeps the tokens.
"""

"""The commands of ``agenttx``, a file a group of them.

Everything here but ``serve``, ``migrate``, ``backup``, ``restore`` and ``hint`` is a client of the gRPC
API like any other, through the SDK. Modules import what is heavy where it is needed: ``agenttx --help`` answers before
gRPC, SQLAlchemy and the engine would be loaded.
"""

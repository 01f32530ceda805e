"""Messages in, engine requests out, and back; protobuf stops here.

``requests`` checks the form of a request (what no engine rule can know: enumerations, durations,
``Struct``) and collects everything wrong with it; sizes and ranges are the engine's to check.
``answers`` builds responses. ``values`` and ``enumerations`` are shared by both.
"""

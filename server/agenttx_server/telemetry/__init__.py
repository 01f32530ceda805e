"""What a server tells of itself to those who run it: metrics (Prometheus) and traces (OpenTelemetry).

Nothing here is imported by what it watches: facts come through a port of the engine, through counts that parts keep of
themselves, and through wrappers that the composition root puts around ports.
"""

"""What holds for every test."""

import os

from hypothesis import HealthCheck, settings

# Before anything imports grpc: its core logs in a format of its own, which would drown a failing test's output.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# No per-example deadline: it measures the machine's load and not the code. In CI the examples are the same every run,
# so that a red run means a change and can be repeated; elsewhere they differ, which is how new ones are found.
settings.register_profile("development", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", parent=settings.get_profile("development"), derandomize=True, database=None, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "development")

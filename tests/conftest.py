"""What holds for every test."""

import os
import sys

from hypothesis import HealthCheck, settings

# Before anything imports grpc: its core logs in a format of its own, which would drown a failing test's output.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# No per-example deadline: it measures the machine's load and not the code. The examples are the same every run, so
# that a red run means a change and can be repeated; HYPOTHESIS_PROFILE=explore draws new ones.
settings.register_profile(
    "explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("same", parent=settings.get_profile("explore"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_unconfigure() -> None:
    """Remove the PostgreSQL of this process, if there is one: when xdist ends a worker it may be too late."""
    clusters = sys.modules.get("tests.support.postgres_cluster")
    if clusters is not None:
        clusters.remove_shared_cluster()

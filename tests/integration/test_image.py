"""The server's image: built, started without root on a read-only file system, asked for its health, drained."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.support.cli_calls import REPOSITORY

CANT_SAY = 3
ROOTFS = os.environ.get("AGENTTX_TEST_ROOTFS", "")
"""A tar file for buildah to build on, where no engine runs (scripts/check_image.sh --rootfs)."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_image_starts_serves_keeps_its_data_and_drains() -> None:
    arguments = ["--rootfs", ROOTFS] if ROOTFS else []
    checked = subprocess.run(
        [str(REPOSITORY / "scripts" / "check_image.sh"), *arguments],
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    if checked.returncode == CANT_SAY:
        pytest.skip(checked.stderr.strip())
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "SIGTERM drained it, with exit code 0" in checked.stdout

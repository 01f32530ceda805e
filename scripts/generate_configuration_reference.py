"""Write docs/configuration.md from the server's settings.

python scripts/generate_configuration_reference.py           write it
python scripts/generate_configuration_reference.py --check   exit 1 if it is stale
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from agenttx_server.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "configuration.md"

HEAD = """# Configuration

Each setting of `agenttx serve` is a flag and a variable; a flag wins over a variable. Bad settings are
refused at start, all of them at once. Units are in the names: seconds and bytes. This page is generated
from the settings by `make docs`.

| flag | variable | default | meaning |
| --- | --- | --- | --- |
"""


def _default(name: str, value: Any) -> str:
    if name.endswith("_mode"):
        return f"`{value:o}`"
    if value in (PydanticUndefined, None, "", (), Path()):
        return ""
    return f"`{value}`"


def _page() -> str:
    rows = []
    for name, field in Settings.model_fields.items():
        meaning = (field.description or "").replace("|", "\\\\|")
        flag = f"--{name.replace('_', '-')}"
        rows.append(
            f"| `{flag}` | `AGENTTX_{name.upper()}` | {_default(name, field.default)} | {meaning} |\n"
        )
    return HEAD + "".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is stale")
    arguments = parser.parse_args()
    page = _page()
    if not arguments.check:
        PAGE.write_text(page)
        return 0
    if PAGE.exists() and PAGE.read_text() == page:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is stale; run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

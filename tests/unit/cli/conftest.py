"""How the unit tests look at what is shown."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console


@pytest.fixture
def shown() -> Callable[..., str]:
    """Render something as plain text, lines without trailing blanks."""

    def render(renderable: Any, width: int = 200) -> str:
        out = io.StringIO()
        Console(file=out, width=width, highlight=False, markup=False, emoji=False).print(renderable)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    return render


@pytest.fixture
def coloured() -> Callable[..., str]:
    """Render something as a terminal would be sent it."""

    def render(renderable: Any, width: int = 200) -> str:
        out = io.StringIO()
        console = Console(
            file=out,
            width=width,
            highlight=False,
            markup=False,
            emoji=False,
            force_terminal=True,
            color_system="standard",
        )
        console.print(renderable)
        return out.getvalue()

    return render

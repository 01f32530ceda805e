"""Names as labels of metrics, so that nobody who chooses names can make the metrics grow."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["OTHER", "BoundedLabels"]

OTHER = "other"


class BoundedLabels:
    """Gives the first ``limit`` names that are ``known`` labels of their own, for good; all else is ``other``."""

    def __init__(self, limit: int, known: Callable[[str], bool] = lambda name: True) -> None:
        self._limit = limit
        self._known = known
        self._labels: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Return the label of a name."""
        label = self._labels.get(name)
        if label is None:
            if len(self._labels) >= self._limit or not self._known(name):
                return OTHER
            label = self._labels[name] = name
        return label

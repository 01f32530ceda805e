"""What goes wrong with an expression.

ExpressionError
├── ExpressionInvalid     it is not accepted at all: the writer mends it
└── EvaluationFailed      it has no answer for these values
"""

__all__ = ["EvaluationFailed", "ExpressionError", "ExpressionInvalid"]


class ExpressionError(Exception):
    """Every error of this package. ``reason`` is one line and shows none of the values."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ExpressionInvalid(ExpressionError):
    """The text is no expression, names something undeclared, or has the wrong type.

    ``line`` and ``column`` count from 1 and say where; 0 where the whole is meant.
    """

    def __init__(self, reason: str, line: int = 0, column: int = 0) -> None:
        super().__init__(reason)
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.reason}" if self.line else self.reason


class EvaluationFailed(ExpressionError):
    """No answer: a missing field, an operator on values it has no meaning for, or too much work.

    What ``&&`` and ``||`` absorb, because the other side decides, is no failure.
    """

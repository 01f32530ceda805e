"""Expressions that users write: guards, routers, approval policies. CEL behind one door.

    condition = compile_expression("order.total > 100 && has(order.customer)", {"order": Kind.OBJECT})
    condition.evaluate({"order": {"total": 120, "customer": "c-7"}})        # True

The language is CEL as Google's own library reads it (docs/decisions/0018): type-checked when
it is compiled, free of effects, unable to loop for ever, and bounded here in text, nesting,
iterations and work. The same text over the same values gives the same answer everywhere.
"""

from agenttx_server.expressions.errors import EvaluationFailed, ExpressionError, ExpressionInvalid
from agenttx_server.expressions.expression import Expression, Kind, Result, compile_expression
from agenttx_server.expressions.limits import MAX_TEXT_LENGTH, MAX_WORK

__all__ = [
    "MAX_TEXT_LENGTH",
    "MAX_WORK",
    "EvaluationFailed",
    "Expression",
    "ExpressionError",
    "ExpressionInvalid",
    "Kind",
    "Result",
    "compile_expression",
]

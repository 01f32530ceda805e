"""What an expression may cost. Beyond the first three it is not compiled, beyond the others not evaluated."""

from typing import Final

__all__ = ["MAX_ITERATIONS", "MAX_MACROS", "MAX_TEXT_LENGTH", "MAX_WORK"]

MAX_TEXT_LENGTH: Final = 4_096
"""Characters of an expression. Its nesting is held to 32 by the library, whatever its length."""

MAX_MACROS: Final = 8
"""Comprehensions (all, exists, exists_one, map, filter) in one expression."""

MAX_ITERATIONS: Final = 10_000
"""Turns of all comprehensions of one evaluation together; the library counts them."""

MAX_WORK: Final = 16 * 1024 * 1024
"""Bytes that an evaluation may have to touch by the estimate of :mod:`.work`; about 0.1 s of one core."""

"""The agent's model. It has a script, and speaks the form of Chat Completions as a real one does.

Like a real one it knows only what is in the conversation: what it says next follows from how far that has come, and
from what it was told to keep to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

TASK = (
    "Let carts have a discount: total(prices, discount_percent=0). to_cents should allow spaces around the amount. "
    "The tests have to pass."
)

FLOATS = '''\
def to_cents(amount):
    """Return an amount like "19.99" in cents."""
    return int(float(amount) * 100)
'''
EXACT = '''\
from decimal import Decimal


def to_cents(amount):
    """Return an amount like "19.99" in cents."""
    return int(Decimal(amount.strip()) * 100)
'''
CART = '''\
from shop.money import to_cents


def total(prices, discount_percent=0):
    """Return the sum of prices in cents, less a discount."""
    return sum(to_cents(price) for price in prices) * (100 - discount_percent) // 100
'''

Call = tuple[str, dict[str, Any]]


def plan(told: str) -> list[list[Call]]:
    """Return the calls that the model means to make, by what it was told of failures: a list for each message."""
    return [
        [("fs_list", {"path": "shop"}), ("fs_read", {"path": "shop/cart.py"})],
        [("fs_write", {"path": "shop/money.py", "content": EXACT if "shop/money.py" in told else FLOATS})],
        [
            ("fs_write", {"path": "shop/cart.py", "content": CART}),
            ("fs_write", {"path": "CHANGES.md", "content": "- Carts have discounts.\n"}),
        ],
        [("code_test", {"money_path": "shop/money.py", "cart_path": "shop/cart.py"})],
    ]


def next_message(history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the model says next."""
    said = sum(message["role"] == "assistant" for message in history)
    turns = plan("\n".join(message["content"] for message in history if message["role"] == "user"))
    if said == len(turns):
        return {"role": "assistant", "content": "Carts have discounts, and all tests pass."}
    calls = [
        {
            "id": f"call_{said}_{index}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for index, (name, arguments) in enumerate(turns[said])
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}

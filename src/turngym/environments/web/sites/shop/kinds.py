"""The kinds of tasks in the shop; kept apart, so that registering them imports nothing else."""

from __future__ import annotations

SHOP_KINDS = (
    "add", "address", "again", "alert", "as-other", "cheapest", "compare", "coupon", "drop",
    "forget", "later", "many", "moved", "new-list", "order", "price", "profile", "quantity",
    "review", "search", "spent", "stock", "two", "wish",
)  # fmt: skip

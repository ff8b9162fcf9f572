"""Paging: the part of a list that a client asks for, by the ids of its items, which sort by time."""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from starlette.requests import Request

from engine.api.openai.errors import refusal
from engine.errors import quoted


class Page(NamedTuple):
    """Place in a list: at most `limit` items behind the item `after`, newest first unless is_ascending."""

    limit: int
    after: str
    is_ascending: bool

    @classmethod
    def of(cls, request: Request, ids: re.Pattern[str], default: int, most: int) -> "Page":
        """Return the page of a request; `ids` is the pattern of its items' ids. Raises ApiError."""
        limit = request.query_params.get("limit", str(default))
        if not re.fullmatch("[0-9]{1,5}", limit) or not 1 <= int(limit) <= most:
            raise refusal(f"limit = {quoted(limit)}: must be a whole number from 1 to {most:,}", "limit")
        after = request.query_params.get("after", "")
        if after and not ids.fullmatch(after):
            raise refusal(f"after = {quoted(after)}: is not an id of this list", "after")
        order = request.query_params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise refusal(f"order = {quoted(order)}: must be asc or desc", "order")
        return cls(int(limit), after, order == "asc")

    def rest(self, ids: Iterable[str]) -> list[str]:
        """Return the ids of this page and all behind it, in order."""
        is_behind = self.after.__lt__ if self.is_ascending else self.after.__gt__
        return sorted((id for id in ids if not self.after or is_behind(id)), reverse=not self.is_ascending)


def listed(items: list[Any], has_more: bool) -> dict[str, Any]:
    """Return a page of items for JSON."""
    ends = {"first_id": items[0].id if items else None, "last_id": items[-1].id if items else None}
    return {"object": "list", "data": items, **ends, "has_more": has_more}

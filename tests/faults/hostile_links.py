"""Hostile links: every page opened by an address that somebody else made, in tabs and in a real browser."""

import random
from urllib.parse import quote, urlencode

from tests.faults.foreign import nasty
from tests.faults.page import Page
from tests.faults.world import CANARY, World

NAMES = {
    "": ("trial",),
    "compare": (
        "kind",
        "runs",
        "cells",
        "baseline",
        "y",
        "columns",
        "chart",
        "trials",
        "comparison",
        "metric",
        "alike",
    ),
    "benchmark": ("run", "question", "metric", "baseline", "chart", "columns"),
    "history": ("view", "query", "text", "status", "since", "until", "by", "like", "page", "sort", "x", "y", "tags"),
    "cost": ("documents", "model", "every", "counted", "utilisation", "concurrency", "deadline_h", "budget_usd"),
    "models": ("view", "model", "second", "shared", "name", "type", "n_ctx", "parallel"),
    "embeddings": ("view", "source", "model", "backend", "find", "folder", "text"),
}
BOMB = ", ".join(
    ["WITH c0 AS (SELECT 1 AS x)", *(f"c{n} AS (SELECT * FROM c{n - 1} a, c{n - 1} b)" for n in range(1, 24))]
)
SQL = (
    f"{BOMB} SELECT count(*) FROM c23",
    "SELECT length(printf('%1999999999d', range)) FROM range(3)",
    "SELECT format('{:>500000000}', range::VARCHAR) FROM range(4)",
    "SELECT list_sum(list_transform(range(100000000), x -> x * 2))",
    "SELECT repeat('x', 1000000000)",
    f"COPY (SELECT 1) TO '/tmp/{CANARY}'",
    f"WITH x AS (SELECT 1) COPY trials TO '/tmp/{CANARY}.csv'",
    "SELECT * FROM read_csv('/etc/passwd')",
    "ATTACH '/tmp/x.db'",
    "INSTALL httpfs",
    "DELETE FROM trials",
    "PRAGMA database_list",
    "SELECT getenv('HOME')",
    "WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT * FROM r) SELECT * FROM r",
)
OTHERS = ("runs", "trials", "sql", "reference", "True", "0", "-1", "1e999", "ram", "/etc/passwd", "/dev/zero", "\0")


def hostile_link(world: World, draw: random.Random) -> None:
    """Some addresses with drawn parameters: each is a page in time, without traceback, and nothing of it runs."""
    for _ in range(draw.randint(2, 5)):
        name = draw.choice(sorted(NAMES))
        query = _query(draw, name)
        world.doing = f"open /{name}?{query[:300]}"
        with Page(world.app.url, name, query):
            pass
    if draw.random() < 0.3:
        world.browser().visit(f"{world.app.url}/{name}?{query}")


def hostile_question(world: World, draw: random.Random) -> None:
    """SQL that is meant to stop or leave the workbench: asked for by a link, then run by hand."""
    sql = draw.choice(SQL)
    world.doing = f"link to {sql[:200]}"
    with Page(world.app.url, "history", urlencode({"view": "sql", "query": sql})) as page:
        world.doing = f"ask {sql[:200]}"
        page.press("history_sql_run")


def _query(draw: random.Random, name: str) -> str:
    asked = {}
    for parameter in draw.sample(NAMES[name], min(len(NAMES[name]), draw.randint(1, 4))):
        asked[parameter] = draw.choice((nasty(draw), draw.choice(OTHERS), draw.choice(SQL)))[:4000]
    if draw.random() < 0.2:
        asked[nasty(draw)[:100]] = nasty(draw)[:100]
    text = urlencode(asked, errors="replace", quote_via=quote)
    return text if draw.random() < 0.9 else text + "&%zz&=&&x" + quote(draw.randbytes(10))

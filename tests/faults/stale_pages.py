"""Stale pages: on a slow connection a person acts on what the page no longer offers, or presses a button again."""

import random
from collections.abc import Iterator, Sequence

from tests.faults.page import Page
from tests.faults.world import World

ADDRESSES = (
    ("", ""), ("compare", ""), ("compare", "kind=runs"), ("traffic", ""), ("benchmark", ""),
    ("benchmark", "question=settings"), ("benchmark", "question=embedding"), ("history", ""),
    ("history", "view=trials"), ("history", "view=reference"), ("history", "view=sql"), ("cost", ""), ("models", ""),
    ("models", "view=fit"), ("models", "view=quantise"), ("models", "view=get"), ("embeddings", ""),
)  # fmt: skip
CHOICES = ("selectbox", "multiselect", "button_group")
GONE = "what was offered before"


def stale_page(world: World, draw: random.Random) -> None:
    """A few choices in one tab, each by a browser that has not seen what the choice before it changed.

    Buttons are left to tests.e2e.test_stale_pages: what they eject or measure is not there for the checks of a fault.
    """
    name, query = draw.choice(ADDRESSES)
    with Page(world.app.url, name, query) as page:
        for _ in range(5):
            offered = sorted(keys(page, CHOICES))
            if not offered:  # as on the Traffic page without traffic
                return
            key = draw.choice(offered)
            world.doing = f"use {key} of a stale {page.place}"
            use(page, key)


def keys(page: Page, kinds: Sequence[str] = (*CHOICES, "button")) -> set[str]:
    """The keys of the enabled widgets of these kinds."""
    widgets = [one for kind in kinds for one in page.of_type(kind) if not one.disabled]
    return {key for one in widgets if (key := one.id.split("-", 2)[-1]) and key != "None"}


def use(page: Page, key: str) -> None:
    """Choose what a widget no longer offers, then what it offers, twice; or press it again and again."""
    if page.widget(key).DESCRIPTOR.name == "Button":
        page.press_again(key)
    else:
        for option in (GONE, *_offered(page, key), GONE):
            if page.find(key) is not None:
                page.choose(key, option)
    page.rerun()


def _offered(page: Page, key: str) -> Iterator[str]:
    for option in list(page.widget(key).options)[:2]:
        text = option if isinstance(option, str) else option.content
        yield from (text, text)

"""What a fault is given: the live workbench, its open tabs, what it acknowledged, and folders to lay things in."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

from engine.models.library import shipped
from tests.faults import tokens
from tests.faults.app import App, until
from tests.faults.browser import Browser
from tests.faults.failure import MOST_S, Failure
from tests.faults.home import Home
from tests.faults.ledger import Ledger
from tests.faults.page import Page

NUM_TABS = 4
SHORT, LONG = 8, 384
"""Tokens of a trial that is to end at once, and of one that is to stream while something happens."""

RECORDED_TOP_K = 8
"""Candidates kept with each token. The app holds trials for ten minutes, and with 256 a few dozen of them would be what
a leak looks like."""

PROMPTS = ("Once upon a time", "The king had a daughter", "In the old mill", "A fox came by", "She said to the cat")
RECORDED = next(shipped("demo").glob("*.trial")).stem
CANARY = "logitbench-canary"
"""The name of a file that nothing may write, and a word in every piece of markup that nothing may run."""


class World:
    """One live workbench and everything that faults do to it. `doing` is the last thing that a fault began."""

    def __init__(self, folder: Path, exported: Path) -> None:
        """`exported` keeps what embedding makes of its model once, which takes longer than all else here."""
        self.folder = folder
        self.home = Home(folder / "home")
        (self.home.path / "embedding").symlink_to(exported)
        self.app = App(self.home.path)
        self.ledger = Ledger()
        self.doing = ""
        self.ended: list[str] = []
        """Trials that ended well since the last check: they must be in the history soon."""
        self._tabs: dict[int, Page] = {}
        self._held: list[Callable[[], object]] = []
        self._browser: Browser | None = None
        self._pulse: Pulse | None = None

    # its life

    def start(self) -> None:
        """Start the app, and the thread that feels its pulse."""
        self.app.start()
        self._pulse = Pulse(self.app)

    def down(self) -> None:
        """Note that the app is gone: tabs and trials that no check acknowledged yet are gone with it."""
        self._leave()
        self.ended.clear()

    def close(self) -> None:
        """End everything and give the folders back."""
        self._leave()
        if self._browser is not None:
            self._browser.close()
        self.app.close()
        self.home.close()

    def _leave(self) -> None:
        self.release()
        if self._pulse is not None:
            self._pulse.stop()
            self._pulse = None
        for tab in self._tabs.values():
            tab.close()
        self._tabs.clear()

    # what a fault may use

    def tab(self, number: int = 0) -> Page:
        """One of the tabs that stay open; a new one where its server has gone."""
        if number not in self._tabs:
            self._tabs[number] = Page(self.app.url)
        return self._tabs[number]

    def lose_tab(self, number: int = 0) -> None:
        """Close a tab for good."""
        if number in self._tabs:
            self._tabs.pop(number).close()

    def browser(self) -> Browser:
        """A real Chromium, started at the first call."""
        if self._browser is None:
            self._browser = Browser()
            self.app.others |= self._browser.processes
        return self._browser

    def hold(self, release: Callable[[], object]) -> None:
        """Keep something open until the checks after this fault are over."""
        self._held.append(release)

    def release(self) -> None:
        """Let go of what faults hold."""
        while self._held:
            with suppress(OSError):
                self._held.pop()()

    def begin_trial(self, draw: random.Random, num_tokens: int = SHORT, *, number: int = 0, text: str = "") -> str:
        """Start a trial in a tab and give its id. text: its prompt, empty for a short one drawn by lot."""
        page = self.tab(number)
        page.go_to("")
        if page.find("do_stop") is not None:
            page.press("do_stop")
            until(lambda: self._is_idle(page), "a stopped trial did not end")
        # The trial that ships has every parameter at its default; the newest may be one of somebody hostile.
        page.go_to("", f"trial={RECORDED}")
        text = text or f"{draw.choice(PROMPTS)} {draw.randrange(1000)}"
        page.fill(lab_prompt=text, lab_max_tokens=num_tokens, lab_recorded=RECORDED_TOP_K)
        before = page.trial
        page.press("do_run")
        if page.trial == before:
            raise Failure(f"a trial could not be run: {page.errors()}")
        return page.trial

    def ending(self, trial: str, *, most_s: float = MOST_S) -> dict[str, Any]:
        """How a trial ended, by the token socket; noted where it ended well."""
        end = tokens.follow(self.app.url, trial, most_s=most_s)
        if not end.get("error"):
            self.ended.append(trial)
        return end

    def history_link(self) -> str:
        """The address of the history's download, as the History page gives it."""
        page = self.tab()
        page.go_to("history")
        for button in page.of_type("link_button"):
            if "/logitbench/export" in button.url:
                url: str = button.url
                return url
        raise Failure(f"the History page offers no download; it says {page.errors()}")

    @contextmanager
    def streaming(self, draw: random.Random, most: int = NUM_TABS - 1) -> Iterator[list[str]]:
        """From none to so many trials that stream meanwhile, in tabs of their own; they are stopped afterwards."""
        numbers = range(1, 1 + draw.randint(0, most))
        yield [self.begin_trial(draw, LONG, number=number) for number in numbers]
        for number in numbers:
            page = self.tab(number)
            page.rerun()
            if page.find("do_stop") is not None:
                page.press("do_stop")

    def pulse(self) -> None:
        """Raise Failure where health was not answered in time since the last call."""
        if self._pulse is not None:
            self._pulse.look()

    @staticmethod
    def _is_idle(page: Page) -> bool:
        page.rerun()
        return page.find("do_run") is not None


class Pulse:
    """Asks for the server's health twice a second, so that a hang between two checks is noticed."""

    def __init__(self, app: App) -> None:
        self._app, self._over = app, Event()
        self._longest_s = 0.0
        self._thread = Thread(target=self._feel, daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Raise Failure where an answer took too long since the last look."""
        longest_s, self._longest_s = self._longest_s, 0.0
        if longest_s > MOST_S:
            raise Failure(f"the server did not answer for {longest_s:.1f} s")

    def stop(self) -> None:
        """Feel no more."""
        self._over.set()

    def _feel(self) -> None:
        while not self._over.wait(0.5):
            began = monotonic()
            with suppress(Failure):
                self._app.is_healthy()
            self._longest_s = max(self._longest_s, monotonic() - began)

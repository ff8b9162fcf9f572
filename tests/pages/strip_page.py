"""The page of the harness in a real browser: a trial's strip opened, its tokens found, its text copied."""

from playwright.sync_api import Locator, Page, expect

from tests.pages.harness import END, STORY, ScriptedTrial, Server


def show(page: Page, server: Server, trial: ScriptedTrial, name: str = "t", **options: object) -> Locator:
    server.bench.trials[name] = trial
    query = "&".join(f"{key}={value}" for key, value in options.items())
    page.goto(f"http://{server.host}/?trial={name}&{query}")
    tokens = page.locator(".t.answer")
    if trial.done():
        expect(tokens).to_have_count(len(trial.steps))
    return tokens


def finished(text: str = STORY, prompt: str = "Once upon a time", **options: bool) -> ScriptedTrial:
    trial = ScriptedTrial(text, prompt, **options)
    trial.go_on()
    trial.go_on(ids=[END])
    trial.finish()
    return trial


def copied(page: Page) -> str:
    """What a person gets who clicks into the text, selects it all and copies."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate(
        """() => {
          const text = document.getElementById("host").shadowRoot.querySelector(".text");
          getSelection().selectAllChildren(text);
          document.execCommand("copy");
        }"""
    )
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text

"""Notes on the prompt of a call in the Prompt lab: what a new run does not send as the call did."""

from engine.workbench import Workbench
from engine.workbench.trials import Trial

OTHER_MESSAGES = (
    "Send, Step and Score use these messages alone, without the tools and options of the chat template that the call "
    "sent. Regenerate keeps the prompt of the call."
)
OTHER_IDS = (
    "The call sent its prompt as token ids. Run, Step and Score tokenise its text, which gives other ids. "
    "Regenerate keeps the ids."
)
UNSURE = (
    "A new run sends only the messages of the call, not tools and options of the chat template that it may have sent."
)


def facts(bench: Workbench, trial: Trial) -> list[str]:
    """Return the notes on the prompt of a call that has ended; empty where a new run sends the same prompt."""
    if not trial.client:
        return []
    is_same = bench.plain_prompts.is_same(trial)
    if is_same is None:
        return [UNSURE] if trial.draft.messages else []
    return [] if is_same else [OTHER_MESSAGES if trial.draft.messages else OTHER_IDS]

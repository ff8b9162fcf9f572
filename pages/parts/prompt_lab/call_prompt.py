"""What the Prompt lab does not take over of a call: its prompt, where text or messages alone give other tokens."""

from engine.workbench import Workbench
from engine.workbench.trials import Trial

OTHER_MESSAGES = (
    "Send, Step and Score only give the model these messages alone: tools and options of the chat template that the "
    "call sent are not taken over. Regenerate keeps the prompt of the call."
)
OTHER_IDS = (
    "The call gave the token ids of its prompt. Run, Step and Score only make tokens of its text, which are others. "
    "Regenerate keeps the ids."
)
UNSURE = (
    "Only the messages of the call are taken over, not tools and options of the chat template that it may have sent."
)


def facts(bench: Workbench, trial: Trial) -> list[str]:
    """Return what is to be said of the prompt of a call that has ended; empty where all of it is taken over."""
    if not trial.client:
        return []
    is_same = bench.plain_prompts.is_same(trial)
    if is_same is None:
        return [UNSURE] if trial.draft.messages else []
    return [] if is_same else [OTHER_MESSAGES if trial.draft.messages else OTHER_IDS]

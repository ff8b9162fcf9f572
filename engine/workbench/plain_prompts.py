"""Check of prompts: whether their text, or their messages alone, tokenise to the token ids that they had."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from engine.errors import ConfigError, EngineError, PromptTooLong
from engine.protocol import Engine
from engine.workbench.trial_manager import TrialManager
from engine.workbench.trials import Draft, Trial

KEPT = 1_000
"""Trials whose results are kept."""


class PlainPrompts:
    """Checks whether prompts of trials tokenise to the same ids again; keeps results. Any thread may call it."""

    def __init__(self, trials: TrialManager) -> None:
        self._trials = trials
        self._lock = threading.Lock()
        self._known: OrderedDict[str, bool] = OrderedDict()

    def is_same(self, trial: Trial) -> bool | None:
        """Return whether a trial's prompt, of a chat its messages alone, tokenises to the same ids again.

        False for a prompt that was given as other ids, and for a chat with tools or options of the chat template. None
        where that is not known: another model is loaded, the trial waits, or an external engine tells no ids.
        """
        try:
            engine = self._trials.engine_of(trial)
        except EngineError:  # another model, or one that has just been closed
            return None
        with self._lock:
            if trial.id in self._known:
                return self._known[trial.id]
        found = gives(engine, trial.draft, trial.prompt_ids)
        if found is not None:
            with self._lock:
                self._known[trial.id] = found
                while len(self._known) > KEPT:
                    self._known.popitem(last=False)
        return found


def gives(engine: Engine, draft: Draft, ids: Sequence[int]) -> bool | None:
    """Return whether the text of a draft, or its messages without options, tokenises to these ids; None if unknown.

    False where the chat template refuses the messages alone.
    """
    if not (ids and engine.capabilities.has_ids and engine.capabilities.tokenizes):
        return None
    try:
        found = engine.render_chat(list(draft.messages))[1] if draft.messages else engine.tokenize(draft.prompt)
    except (ConfigError, PromptTooLong):
        return False
    except EngineError:
        return None
    return list(found) == list(ids)

"""Prompts run again from their text, or from their messages alone: whether they have the token ids that they had."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from engine.errors import ConfigError, EngineError, PromptTooLong
from engine.protocol import Engine
from engine.workbench.trial_manager import TrialManager
from engine.workbench.trials import Draft, Trial

KEPT = 1000


class PlainPrompts:
    """Comparer of the prompts of trials with what their text, or their messages alone, give. Any thread may call it."""

    def __init__(self, trials: TrialManager) -> None:
        self._trials = trials
        self._lock = threading.Lock()
        self._known: OrderedDict[str, bool] = OrderedDict()

    def is_same(self, trial: Trial) -> bool | None:
        """Return whether the text of a trial's prompt has the token ids of the prompt; of a chat, its messages alone.

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
    """Return whether the text of a draft, or its messages without options, has these ids; None where that is not known.

    Where the chat template refuses the messages alone, it has not.
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

"""Conversations: the trial behind each answer of a chat."""

from engine.history.conversations import Given, given
from engine.workbench.history_manager import HistoryManager
from engine.workbench.trial_manager import TrialManager
from engine.workbench.trials import Trial

ASSISTANT = "assistant"


class Conversations:
    """Finder of the trials of a conversation, in memory and in the history. Any thread may call it."""

    def __init__(self, trials: TrialManager, kept: HistoryManager) -> None:
        self._trials, self._kept = trials, kept

    def answers(self, trial: Trial) -> list[str | None]:
        """Return for each message of `trial` the id of the trial that generated it; None where none is known.

        One generated a message if it has the messages before it and the same text. Of several, one from which `trial`
        derives is taken, else the newest. Raises HistoryError where the history cannot be read.
        """
        messages, history = trial.draft.messages, self._kept.history
        wanted = {
            number: given(messages[:number], message.get("content", ""))
            for number, message in enumerate(messages)
            if message.get("role") == ASSISTANT
        }
        if not wanted:
            return [None] * len(messages)
        found = [one for live in reversed(self._trials.in_memory()) if (one := _given(live)) is not None]
        if history is not None:
            found += history.conversations.gave([*wanted.values()])
        line = self._line(trial)
        by_answer: dict[Given, str] = {}
        for one in sorted(found, key=lambda one: one.id not in line):
            by_answer.setdefault(one._replace(id=""), one.id)
        return [by_answer.get(wanted[number]) if number in wanted else None for number in range(len(messages))]

    def _line(self, trial: Trial) -> set[str]:
        """Return the ids of the trials from which `trial` derives, in memory and then in the history."""
        history, parents = self._kept.history, {one.id: one.parent for one in self._trials.in_memory()}
        line: set[str] = set()
        parent = trial.parent
        while parent is not None and parent not in line:
            line.add(parent)
            if parent not in parents:
                return line | (history.conversations.ancestors(parent) if history else set())
            parent = parents[parent]
        return line


def _given(trial: Trial) -> Given | None:
    """Return the answer that a trial gave; None where it is no chat or has no result."""
    completion = trial.completion if trial.draft.messages else None
    return given(trial.draft.messages, completion.text, trial.id) if completion else None

"""How a trial ended: the reason in words, the bytes of its text, and what of the context it took."""

from engine.results import Completion


def num_context(num_prompt: int, num_steps: int) -> int:
    """Return the number of tokens in the context; the last sampled token is never decoded, so it is not counted."""
    return num_prompt + max(num_steps - 1, 0)


def num_text_bytes(completion: Completion) -> int:
    """Return the number of bytes of the steps that belong to the text: all of them, unless a stop string ended it."""
    if completion.finish_reason == "stop" and not _has_end(completion):
        return len(completion.text.encode())
    return len(completion.steps.vocabulary.join(completion.ids))


def end_sentence(completion: Completion, n_ctx: int, *, is_call: bool = False) -> str:
    """Return the reason why it stopped, in words. is_call: a program asked for it, not a person on the pages."""
    if completion.finish_reason == "cancelled":
        return "It was stopped: its client left, or somebody stopped it here." if is_call else "You stopped it."
    if completion.finish_reason == "stop":
        if not _has_end(completion):
            return "Stopped at a stop string."
        return "The model ended the text." if completion.text else "(no text: the model ended its turn at once)"
    if not completion.steps:
        return "Only the prompt was scored."
    if num_context(len(completion.prompt_ids), len(completion.steps)) >= n_ctx:
        return f"The context of {n_ctx:,} tokens is full."
    return f"Stopped at the {len(completion.steps):,}-token limit."


def _has_end(completion: Completion) -> bool:
    return bool(completion.ids) and completion.steps.vocabulary.is_end(completion.ids[-1])


def text_before(text: str, stops: tuple[str, ...]) -> str:
    """Return `text` up to the first stop string."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]

"""Which worker a prompt goes to: the one that holds most of it already, else the one with least to do.

Compares bytes, not ids: the text of a prompt is known here before any worker has tokenised it.
"""

from collections.abc import Sequence

from engine.llama.prefix import WORTHWHILE
from engine.pool.member import Member
from engine.vocabulary import Vocabulary


def best_member(members: Sequence[Member], prompt: str | list[int], vocabulary: Vocabulary, parallel: int) -> Member:
    """The member to run `prompt` on; a shared prefix counts from 32 tokens and only where a sequence is free."""
    if len(members) == 1:
        return members[0]
    text = _bytes(prompt, vocabulary)

    def merit(member: Member) -> tuple[float, int]:
        shared = _shared_tokens(member, text) if len(member.jobs) < parallel else 0.0
        return (shared if shared >= WORTHWHILE else 0.0, -len(member.jobs))

    return max(members, key=merit)


def _bytes(prompt: str | list[int], vocabulary: Vocabulary) -> bytes:
    """The text of a prompt; empty where an id is not in the vocabulary, which the worker will say."""
    if isinstance(prompt, str):
        return prompt.encode("utf-8", "surrogatepass")
    return vocabulary.join(prompt) if max(prompt, default=0) < len(vocabulary) else b""


def remember(member: Member, job_id: str, text: bytes, num_tokens: int, parallel: int) -> None:
    """Note that the member's cache holds `text`, `num_tokens` long; as many notes are kept as it has sequences."""
    member.texts[job_id] = (text, num_tokens)
    member.texts.move_to_end(job_id)
    while len(member.texts) > parallel:
        member.texts.popitem(last=False)


def _shared_tokens(member: Member, text: bytes) -> float:
    """Tokens of the longest prefix that `text` shares with a noted one, from its bytes at that text's bytes a token."""
    longest = 0.0
    for held, num_tokens in member.texts.values():
        shared = shared_bytes(held.removeprefix(b" "), text.removeprefix(b" "))
        longest = max(longest, shared * num_tokens / max(len(held), 1))
    return longest


def shared_bytes(left: bytes, right: bytes) -> int:
    """How many first bytes two texts have in common, found by halving."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low

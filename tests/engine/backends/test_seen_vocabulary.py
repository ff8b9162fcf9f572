"""Seen vocabulary: what several threads add to it, and the ends of texts."""

import random
import threading

import pytest

from engine.backends.seen_vocabulary import SeenVocabulary
from engine.errors import ServerFailed


def test_tokens_of_several_threads_are_all_there() -> None:
    vocabulary, begin = SeenVocabulary.empty(), threading.Barrier(4)

    def learn(first: int) -> None:
        begin.wait()
        for token in range(first, 4000, 4):
            vocabulary.learn(token, b"%d" % token)

    threads = [threading.Thread(target=learn, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(vocabulary) == len(vocabulary.kinds) == 4000
    assert all(vocabulary.pieces[token] == b"%d" % token for token in range(4000))


def test_an_end_stays_one_when_its_bytes_come_later() -> None:
    vocabulary = SeenVocabulary.empty()
    vocabulary.mark_end(5)
    vocabulary.learn(5, b"")
    assert vocabulary.is_end(5) and vocabulary.end_tokens == (5,)


def test_the_end_of_a_server_without_ids_has_one_number() -> None:
    vocabulary = SeenVocabulary.empty()
    numbers = [vocabulary.number(b" a"), vocabulary.number(b"", name=b"\xef\xbf\xbd"), vocabulary.number_of_end()]
    assert numbers == [0, 1, 2] and vocabulary.number_of_end() == 2
    assert [vocabulary.is_end(token) for token in numbers] == [False, False, True]


def test_tokens_without_ids_have_the_same_numbers_together_as_one_by_one() -> None:
    draw = random.Random(0)
    together, single = SeenVocabulary.empty(), SeenVocabulary.empty()
    for _ in range(50):
        pieces = [draw.choice([b"", b"%d" % draw.randrange(40)]) for _ in range(draw.randrange(6))]
        assert together.numbers(pieces) == [single.number(piece) for piece in pieces]
        assert together.number(b"", name=b"<end>") == single.number(b"", name=b"<end>")
    assert together.hash == single.hash and len(together) > 30


def test_numbers_beyond_those_of_a_server_are_refused() -> None:
    vocabulary = SeenVocabulary.empty(num_tokens=3)
    with pytest.raises(ServerFailed, match="beyond the 3 of its model"):
        vocabulary.numbers([b"a"])

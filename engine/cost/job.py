"""Cost job: documents to read, tokens to generate, sentences to embed."""

from dataclasses import dataclass

from engine.errors import ConfigError
from engine.validation import Spec

MOST_TOKENS = 1e15


@dataclass(frozen=True, kw_only=True)
class CostJob(Spec):
    """A job; the defaults are the example of note A: 100 documents of 5,000 words, 1.5 tokens per word.

    tokens_per_document: prompt tokens; 0: its words times tokens_per_word. output_tokens: generated for each document.
    embedding_sentences: total to embed. concurrency: documents processed together; 0: as many as the speeds were
    measured with. utilisation: share of the paid time that is work. startup_s: seconds before the work begins, paid
    once.
    """

    documents: int = 100
    words_per_document: float = 5000.0
    tokens_per_word: float = 1.5
    tokens_per_document: float = 0.0
    output_tokens: float = 0.0
    embedding_sentences: int = 0
    concurrency: int = 0
    utilisation: float = 1.0
    startup_s: float = 0.0

    def __post_init__(self) -> None:
        self._whole("documents", 0, 10**12)
        for name in ("words_per_document", "tokens_per_document", "output_tokens"):
            self._real(name, 0, 1e9)
        self._real("tokens_per_word", 0.01, 100)
        self._whole("embedding_sentences", 0, 10**12)
        self._whole("concurrency", 0, 4096)
        self._real("utilisation", 0.01, 1)
        self._real("startup_s", 0, 1e7)
        if self.num_tokens > MOST_TOKENS:
            raise ConfigError(f"the job has {self.num_tokens:.3g} tokens; up to {MOST_TOKENS:.0e} can be estimated")
        if self.num_tokens + self.embedding_sentences == 0:
            raise ConfigError("the job is empty: it needs documents with words or tokens, or sentences to embed")

    @property
    def is_from_words(self) -> bool:
        """True where the prompt's tokens follow from its words."""
        return not self.tokens_per_document

    @property
    def num_prompt(self) -> float:
        """Total prompt tokens."""
        return self.documents * (self.tokens_per_document or self.words_per_document * self.tokens_per_word)

    @property
    def num_output(self) -> float:
        """Total generated tokens."""
        return self.documents * self.output_tokens

    @property
    def num_tokens(self) -> float:
        """Total prompt and generated tokens."""
        return self.num_prompt + self.num_output

"""EngineConfig: how an engine forms steps, and the few static shapes that it pads them to."""

from dataclasses import dataclass

from dsa_verify.errors import ConfigError


@dataclass(frozen=True)
class EngineConfig:
    """Settings of an engine; none of them may change an answer."""

    max_running: int
    """Sequences that run at once."""
    chunk_tokens: int
    """Prompt tokens computed in one step; decodes come on top, so that neither starves the other."""
    pages_per_seq: int
    """Width of the page table: a request never has more pages."""
    mixed: bool = True
    """Decodes and chunks share a step; otherwise decodes wait while there are chunks."""
    prefix_cache: bool = True
    """Whole pages of prompts and answers stay in the pool and are shared with later requests."""
    decode_seqs: tuple[int, ...] = ()
    """Sequence slots of decode steps, beside a bucket that always fits."""
    extend_tokens: tuple[int, ...] = ()
    """Token slots of extend and mixed steps, beside a bucket that always fits; they have `max_running` sequences."""
    page_seed: int | None = 0
    """Order in which pages are handed out; None for ascending, which makes page tables ranges."""

    def __post_init__(self) -> None:
        for name in ("max_running", "chunk_tokens", "pages_per_seq"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected at least 1")
        if min(self.decode_seqs + self.extend_tokens, default=1) < 1:
            raise ConfigError(f"buckets {self.decode_seqs} and {self.extend_tokens} must be positive")

    @property
    def decode_shapes(self) -> list[tuple[int, int]]:
        """(tokens, seqs) of decode steps, smallest first."""
        return [(seqs, seqs) for seqs in _covering(self.decode_seqs, self.max_running)]

    @property
    def extend_shapes(self) -> list[tuple[int, int]]:
        """(tokens, seqs) of extend and mixed steps, smallest first."""
        most = self.chunk_tokens + self.max_running - 1
        return [(tokens, self.max_running) for tokens in _covering(self.extend_tokens, most)]

    def shape_for(self, q_lens: list[int]) -> tuple[int, int]:
        """The smallest shape that a step of these lengths fits; one token each makes it a decode step."""
        decode = all(q_len == 1 for q_len in q_lens)
        shapes = self.decode_shapes if decode else self.extend_shapes
        return next(shape for shape in shapes if shape[0] >= sum(q_lens))


def _covering(sizes: tuple[int, ...], most: int) -> list[int]:
    """The sizes in order, with one more where none of them holds `most`."""
    return sorted({*sizes, max(most, *sizes, 0)})

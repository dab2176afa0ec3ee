"""A needle grid, made here: one sentence with a code in a long text, by the length of the text and the place in it."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsa_verify.errors import ConfigError
from dsa_verify.gates.records import Question, sha
from dsa_verify.gates.tasks.task import Task, TaskDocument
from dsa_verify.gates.tasks.truncation import Spans

NAME = "needle"
TOKENS = (4096, 8192, 16384, 32768, 65536)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
REPEATS = 8
"""Documents of a cell. sgl-project/sglang-jax#1508 had one in each of 25 cells and called 4 % its noise; 200 documents
without a difference show that less than 1.5 % are lost."""
OTHERS = 3
"""Sentences of the same form about something else: a model that finds any code has not found the right one."""
MAX_TOKENS = 64
VERSION = 1.0
SEED = 1729

_OF = "amber ashen birch brass chalk cobalt coral copper crimson dusky ebony flint frosted garnet golden hazel indigo"
_WHAT = "harbor mill chapel lantern bridge orchard cellar tower quarry garden stable foundry market archive ferry well"
_HAY = (
    "The miller|A surveyor|Her cousin|The old captain|One of the clerks|The gardener|A travelling tailor|The cook",
    "walked past|wrote about|spoke of|sketched|remembered|had never seen|asked after|turned away from|grew fond of",
    "the empty square|a row of poplars|the winter road|an unfinished wall|the lower meadow|a crate of pears",
    "before the rain came|while the others slept|late in the season|without a word|on the way home|as bells rang",
)
"""Parts of a sentence of hay, which has no digit; each choice of four is one sentence."""


class Contained:
    """1.0 for an answer in which the code stands, otherwise 0.0."""

    def process_results(self, doc: dict[str, Any], results: list[str], /) -> Mapping[str, float]:
        return {"score": float(doc["answers"][0] in results[0])}


def needle(lengths: Sequence[int], spans: Spans, repeats: int = REPEATS) -> Task:
    """The grid: `repeats` documents for each length in tokens and each of `DEPTHS`, the same every time.

    The first document of every cell comes before the second of any. Raises `ConfigError` for a length that has no room
    for the sentences. Sources: single and multi-key needles as in RULER (arXiv 2404.06654), the grid as in
    sgl-project/sglang-jax#1508.
    """
    hay = [" ".join(parts) + "." for parts in itertools.product(*(part.split("|") for part in _HAY))]
    sizes = np.array([len(spans(sentence)) for sentence in hay])
    cells = itertools.product(range(repeats), lengths, DEPTHS)
    documents = tuple(_document(cell, hay, sizes, spans) for cell in cells)
    return Task(NAME, NAME, VERSION, documents, Contained(), {}, sized=True)


def _document(cell: tuple[int, int, float], hay: list[str], sizes: np.ndarray, spans: Spans) -> TaskDocument:
    repeat, length, depth = cell
    rng = np.random.default_rng([SEED, repeat, length, round(100 * depth)])
    names = _names(rng)
    codes = [str(code) for code in 1_000_000 + rng.choice(9_000_000, len(names), replace=False)]
    sentences = [f"The code of the {name} is {code}." for name, code in zip(names, codes, strict=True)]
    asked = f"\n\nOne sentence above states the code of the {names[0]}. The code of the {names[0]} is"
    room = length - len(spans(" ".join(sentences) + asked))
    drawn = rng.integers(len(hay), size=max(0, room))  # a sentence has more than one token
    text = [hay[n] for n in drawn[: np.searchsorted(np.cumsum(sizes[drawn]), room, "right")]]
    if len(text) < len(sentences):
        raise ConfigError(f"a needle needs a text of more than {length} tokens around it; give larger --needle-tokens.")
    places = [round(depth * len(text)), *rng.choice(len(text), OTHERS, replace=False).tolist()]
    for place, sentence in sorted(zip(places, sentences, strict=True), reverse=True):
        text.insert(place, sentence)
    prompt, number = " ".join(text) + asked, f"{length}-{round(100 * depth)}-{repeat}"
    row = {"_id": number, "tokens": length, "depth": depth, "answers": codes[:1], "name": names[0]}
    return TaskDocument(NAME, number, Question(f"{NAME}/{number}", prompt, MAX_TOKENS), sha(prompt), row)


def _names(rng: np.random.Generator) -> list[str]:
    """The name of the needle and those of the others, no two alike in any word."""
    of, what = (rng.choice(words.split(), OTHERS + 1, replace=False) for words in (_OF, _WHAT))
    return [f"{a} {b}" for a, b in zip(of, what, strict=True)]

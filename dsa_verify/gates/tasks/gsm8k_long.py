"""GSM8K with so many worked examples before the question that sparse attention must drop most of them."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsa_verify.errors import ConfigError
from dsa_verify.gates.records import Question, sha
from dsa_verify.gates.tasks.task import Task, TaskDocument, configuration, demand_some
from dsa_verify.gates.tasks.truncation import Spans

NAME = "gsm8k_long"
HUB, PART = "openai/gsm8k", "main"
MAX_TOKENS = 3072
"""Of an answer: in sgl-project/sglang-jax#1508 8 of 50 were cut off at 900 tokens, 1 at 3,072."""
SEED = 8500
CORRECTIONS = {
    "many-shot": "gsm8k_long: lm-eval's gsm8k with as many examples as fill the prompt, drawn anew for each question, "
    "instead of 5; the answer is the last number of the text (lm-eval's flexible-extract)",
}


class LastNumber:
    """lm-eval's own flexible-extract filter and exact match: 1.0 or 0.0."""

    def __init__(self) -> None:
        from lm_eval.api.metrics import exact_match_hf_evaluate
        from lm_eval.filters.extraction import RegexFilter

        own = configuration("gsm8k/gsm8k.yaml")
        (flexible,) = (one for one in own["filter_list"] if one["name"] == "flexible-extract")
        pattern = {key: value for key, value in flexible["filter"][0].items() if key != "function"}
        self._filter, self._match = RegexFilter(**pattern), exact_match_hf_evaluate
        (metric,) = own["metric_list"]
        self._settings = {key: metric[key] for key in ("ignore_case", "ignore_punctuation", "regexes_to_ignore")}

    def process_results(self, doc: dict[str, Any], results: list[str], /) -> Mapping[str, float]:
        (found,) = next(iter(self._filter.apply([results], [doc])))
        scores = self._match(predictions=[found.strip()], references=[doc["answer"]], **self._settings)
        return {"score": float(scores["exact_match"])}


def gsm8k_long(
    rows: Sequence[Mapping[str, Any]], shots: Sequence[Mapping[str, Any]], where: str, tokens: int, spans: Spans
) -> Task:
    """GSM8K (arXiv 2110.14168) over rows with `question` and `answer`, each after examples of `shots`.

    tokens: examples are added while the prompt has fewer. Each question draws its own, so that questions are
    independent and none finds its prefix in a cache. Raises `ConfigError` for rows that lack a column, for no rows,
    and for too few shots.
    """
    demand_some(rows, NAME, where)
    for name, some in (("row", rows), ("shot", shots)):
        for number, row in enumerate(some, 1):
            if not all(isinstance(row.get(column), str) for column in ("question", "answer")):
                raise ConfigError(f"{where}, {name} {number}: expected the texts question and answer in it.")
    own = configuration("gsm8k/gsm8k.yaml")
    stop = tuple(own["generation_kwargs"]["until"])
    examples = [f"Question: {shot['question']}\nAnswer: {shot['answer']}\n\n" for shot in shots]
    sizes = [len(spans(text)) for text in examples]
    documents = []
    for number, row in enumerate(rows):
        asked = f"Question: {row['question']}\nAnswer:"
        before = _drawn(number, sizes, tokens - len(spans(asked)), where)
        prompt = "".join(examples[n] for n in before) + asked
        question = Question(f"{NAME}/{number}", prompt, MAX_TOKENS, stop)
        documents.append(
            TaskDocument(
                NAME, str(number), question, sha(prompt), {**row, "answers": [row["answer"]], "shots": len(before)}
            )
        )
    return Task(NAME, NAME, float(own["metadata"]["version"]), tuple(documents), LastNumber(), CORRECTIONS, sized=True)


def _drawn(number: int, sizes: Sequence[int], tokens: int, where: str) -> list[int]:
    """Places of the examples before a question: as few as have the tokens together."""
    order = np.random.default_rng([SEED, number]).permutation(len(sizes)).tolist()
    total = list(itertools.accumulate((sizes[n] for n in order), initial=0))
    if total[-1] < tokens:
        raise ConfigError(
            f"{where}: its {len(sizes)} examples have {total[-1]:,} tokens, fewer than the {tokens:,} that fill a "
            "prompt; give more, or a smaller --gsm8k-tokens."
        )
    return order[: int(np.searchsorted(total, tokens))]

"""The built-in model retrieves: dense and sparse answer alike, and a model that keeps one page does not."""

import dataclasses

import numpy as np
import pytest

from dsa_verify.engine import Engine, EngineConfig, GenerationRequest
from dsa_verify.model.backend_config import BackendConfig
from dsa_verify.model.checkpoint import read_weights
from dsa_verify.model.model_config import read_config
from dsa_verify.model.tiny import END, Words, tiny_config, tiny_weights, write_tiny

FILLER = [f"filler{n}" for n in range(30)]
PAGE_SIZE, WORDS, DOCUMENTS = 16, 400, 4
CONFIG = dataclasses.replace(tiny_config(), index_topk=128)
"""The built-in model with a budget of 8 pages, so that documents of about 30 are long ones."""

DENSE = BackendConfig(kernels="jnp", page_topk=4096)
SPARSE = BackendConfig(kernels="jnp", prefill_sparse=True)


def needle(rng: np.random.Generator) -> tuple[str, str]:
    """Many facts about many names among filler, and a question about one of them."""
    names = [f"name{n}" for n in rng.choice(900, 6, replace=False)]
    facts = {name: f"value{rng.integers(900)} part{rng.integers(900)}" for name in names}
    asked = str(rng.choice(names))
    return scattered(rng, [f", the code of {n} is {v} ." for n, v in facts.items()], f"the code of {asked} is"), facts[
        asked
    ]


def vote(rng: np.random.Generator) -> tuple[str, str]:
    """A claim that is made in different ways, once a page at most; the answer is the one made most often."""
    right, wrong, other = (f"claim{n}" for n in rng.choice(900, 3, replace=False))
    claims = [right] * 3 + [wrong] * 2 + [other]
    return scattered(rng, [f", witness saw {claim} ." for claim in claims], "witness saw"), right


def scattered(rng: np.random.Generator, sentences: list[str], question: str) -> str:
    """Sentences at random places of filler, far apart and never in the last two pages, then the question."""
    words = [str(word) for word in rng.choice(FILLER, WORDS)]
    slots = rng.permutation(np.arange(1, WORDS // 50))[: len(sentences)]
    for slot, sentence in zip(slots, rng.permutation(sentences), strict=True):
        words[50 * int(slot)] += f" {sentence}"
    return f"{' '.join(words)} {question}"


def score(backend: BackendConfig, task, config=CONFIG) -> float:
    """Share of documents whose answer is right word for word."""
    from dsa_verify.model.decoder import load_params
    from dsa_verify.model.runner import ModelRunner

    pages = WORDS * 3 // 2 // PAGE_SIZE
    runner = ModelRunner(config, load_params(config, tiny_weights(), np.float32), backend, PAGE_SIZE, pages)
    engine = Engine(runner, EngineConfig(max_running=1, chunk_tokens=64, pages_per_seq=pages - 1, prefix_cache=False))
    right = 0
    for document in range(DOCUMENTS):
        words = Words()
        text, answer = task(np.random.default_rng([7, document]))
        asked = GenerationRequest(tuple(words.encode(text)), max_new_tokens=len(answer.split()))
        (done,) = engine.generate([asked])
        right += words.decode(list(done.tokens)) == answer
    return right / DOCUMENTS


@pytest.mark.parametrize("task", [needle, vote])
@pytest.mark.parametrize("backend", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_both_arms_answer(task, backend):
    assert score(backend, task) > 0.9


def test_one_page_loses_the_vote():
    """Every layer keeps a single page in every mode."""
    one = dataclasses.replace(CONFIG, index_topk=PAGE_SIZE)
    assert score(dataclasses.replace(SPARSE, page_topk=1), vote, one) < 0.7


def test_checkpoint_can_be_written_and_read(tmp_path):
    write_tiny(tmp_path)
    config = read_config(tmp_path)
    assert config == tiny_config()
    stored = read_weights(tmp_path, config)
    assert all(np.array_equal(stored[name], value) for name, value in tiny_weights().items())


def test_words_are_the_same_in_every_process_and_come_back():
    words = Words()
    tokens = words.encode("The code, of Darcy: is 'pride'.")
    assert tokens == Words().encode("the CODE , of darcy : is ' pride ' .")
    assert words.decode(tokens) == "The code , of Darcy : is ' pride ' ."
    assert Words().decode([5000]) == "<5000>"


def test_the_end_sign_is_the_token_that_ends_an_answer():
    words = Words()
    assert words.encode(f"so it goes {END}")[-1] == tiny_config().eos_token_ids[0] == 0
    assert words.decode(words.encode(f"so it goes {END}")) == "so it goes"

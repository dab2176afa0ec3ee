"""Long GSM8K: prompts of the length that was asked for, lm-eval's own scores, and questions that share nothing."""

import pytest

from dsa_verify.errors import ConfigError
from dsa_verify.gates.tasks.gsm8k_long import gsm8k_long
from dsa_verify.gates.tasks.truncation import words

SHOTS = [{"question": f"How many is {n} and {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"} for n in range(60)]
ROWS = [{"question": f"How many are {n} pears?", "answer": f"All.\n#### {n},000"} for n in range(5)]


def made(rows=ROWS, shots=SHOTS, tokens=400):
    return gsm8k_long(rows, shots, "the test", tokens, words)


def test_examples_fill_a_prompt_and_the_question_ends_it():
    for row, document in zip(ROWS, made().documents, strict=True):
        prompt = document.question.prompt
        longest = max(len(words(f"Question: {s['question']} Answer: {s['answer']}")) for s in SHOTS)
        assert 400 <= len(words(prompt)) < 400 + longest
        assert prompt.endswith(f"Question: {row['question']}\nAnswer:")
        assert prompt.count("####") == document.row["shots"] > 5, "more than lm-eval's own gsm8k has"


def test_questions_draw_examples_of_their_own_and_always_the_same():
    prompts = [document.question.prompt for document in made().documents]
    assert len({prompt[:40] for prompt in prompts}) > 1
    assert len({document.context_sha for document in made().documents}) == len(ROWS)
    assert prompts == [document.question.prompt for document in made().documents]


def test_scores_and_prompt_form_are_those_of_lm_eval():
    import datasets
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import ConfigurableTask

    from dsa_verify.gates.tasks.task import configuration

    data = {split: datasets.Dataset.from_list(rows) for split, rows in (("test", ROWS), ("train", SHOTS))}
    theirs = ConfigurableTask(config={**configuration("gsm8k/gsm8k.yaml"), "custom_dataset": lambda **_: data})
    task, scores = made(), set()
    for row, document in zip(ROWS, task.documents, strict=True):
        assert document.question.prompt.endswith(theirs.doc_to_text(row))
        number = row["answer"].partition("#### ")[2]
        for text in (f"so {number}.", f"it is 7, then ${number}", "7", f"{number} of 9", "none", ""):
            asked = Instance("generate_until", row, (document.question.prompt, {}), 0, resps=[text])
            theirs._instances = [asked]
            theirs.apply_filters()
            (score,) = theirs.process_results(row, [asked.filtered_resps["flexible-extract"]]).values()
            assert task.score(document, text) == score
            scores.add(score)
    assert scores == {0.0, 1.0}
    assert task.documents[0].question.stop == tuple(theirs.config.generation_kwargs["until"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rows": []}, "holds no rows"),
        ({"rows": [{"question": "what?"}]}, "row 1: expected the texts question and answer"),
        ({"shots": [*SHOTS, {"question": 1, "answer": ""}]}, "shot 61: expected the texts"),
        ({"shots": SHOTS[:3]}, r"its 3 examples have \d+ tokens, fewer than the \d+ that fill a prompt"),
    ],
)
def test_rows_and_shots_that_do_not_do_are_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        made(**given)

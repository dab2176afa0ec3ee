"""Tasks by name, with their documents: LongBench, LongBench v2, long GSM8K, needles, or made for the built-in model."""

import dataclasses

from dsa_verify.errors import ConfigError
from dsa_verify.gates.options import GSM8K_TOKENS, GateOptions
from dsa_verify.gates.tasks import generated, gsm8k_long, longbench2, needle, truncation
from dsa_verify.gates.tasks.longbench import CHINESE, ENGLISH, HUB, group_of, longbench
from dsa_verify.gates.tasks.task import Task, rows_of_file, rows_of_hub

GENERATED_DOCUMENTS = 32
"""Documents of each generated task: as many as the rule needs where nothing differs."""
EMBEDDED_NEEDLES = (192, 320, 448, 576, 704)
"""Lengths of a needle's texts for the built-in model; all beyond its budget."""


def asked_for(o: GateOptions) -> list[Task]:
    """The tasks of a gate with servers: of files, of the hub or made here, shortened and cut as asked.

    Raises `ConfigError` for an unknown task and for data that cannot be read.
    """
    english = [name for names in ENGLISH.values() for name in names]
    named = {"english": english, "all": english + [name for names in CHINESE.values() for name in names]}
    names = list(dict.fromkeys(name for given in o.tasks or ("english",) for name in named.get(given, [given])))
    for name in names:
        if name not in _BESIDE_LONGBENCH:
            group_of(name, _BESIDE_LONGBENCH)
    spans = truncation.by_file(o.tokenizer) if o.tokenizer else truncation.words
    tasks = [_BESIDE_LONGBENCH[name](o, spans) if name in _BESIDE_LONGBENCH else _longbench(o, name) for name in names]
    tasks = [dataclasses.replace(task, documents=task.documents[: o.documents]) for task in tasks]
    if o.max_prompt_tokens is None:
        return tasks
    return [truncation.truncate(task, o.max_prompt_tokens, spans) for task in tasks]


def _longbench(o: GateOptions, name: str) -> Task:
    if o.data is None:
        return longbench(name, rows_of_hub(HUB, name), f"the hub's {name}")
    path = o.data / f"{name}.jsonl"
    return longbench(name, rows_of_file(path), str(path))


def _longbench2(o: GateOptions, spans: truncation.Spans) -> Task:
    if o.data is not None:
        return longbench2.longbench2(*longbench2.rows_of(o.data))
    rows = rows_of_hub(longbench2.HUB, None, longbench2.SPLIT)
    return longbench2.longbench2(rows, f"the hub's {longbench2.HUB}")


def _gsm8k_long(o: GateOptions, spans: truncation.Spans) -> Task:
    if o.data is None:
        rows, shots = (rows_of_hub(gsm8k_long.HUB, gsm8k_long.PART, split) for split in ("test", "train"))
    else:
        rows, shots = (rows_of_file(o.data / f"gsm8k_{split}.jsonl") for split in ("test", "train"))
    where = f"gsm8k of {o.data or 'the hub'}"
    return gsm8k_long.gsm8k_long(rows, shots, where, o.gsm8k_tokens or GSM8K_TOKENS, spans)


def _needle(o: GateOptions, spans: truncation.Spans) -> Task:
    return needle.needle(o.needle_tokens or needle.TOKENS, spans)


_BESIDE_LONGBENCH = {longbench2.NAME: _longbench2, gsm8k_long.NAME: _gsm8k_long, needle.NAME: _needle}
"""Tasks beside LongBench's, by name."""


def generated_here(o: GateOptions) -> list[Task]:
    """The tasks of a gate of the built-in model. Raises `ConfigError` for one that it cannot answer."""
    names, able = o.tasks or generated.TASKS, (*generated.TASKS, needle.NAME)
    strange = [name for name in names if name not in able]
    if strange:
        raise ConfigError(
            f"the built-in model has no documents for {', '.join(strange)}; it has some for {', '.join(able)}."
        )
    return [_generated(o, name) for name in names]


def _generated(o: GateOptions, name: str) -> Task:
    """A task of documents made here, for the built-in model."""
    if name == needle.NAME:
        grid = needle.needle(o.needle_tokens or EMBEDDED_NEEDLES, truncation.words)
        return dataclasses.replace(grid, documents=grid.documents[: o.documents])
    return longbench(name, generated.generated_rows(name, o.documents or GENERATED_DOCUMENTS), "rows made here")

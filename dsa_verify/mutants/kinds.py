"""Kinds of bugs that DSA and paged-attention code has really had, by number, and those no mutant can express."""

KINDS: dict[str, str] = {
    "01": "indexer RoPE layout, half-split due",
    "02": "indexer RoPE layout, interleaved due",
    "03": "ReLU or head sum missing before top-k",
    "04": "Hadamard rotation missing or on one side",
    "05": "indexer norm of the wrong kind or epsilon",
    "06": "head weights rounded to bfloat16",
    "07": "ties not broken by position",
    "08": "candidate buffer overflows",
    "09": "tie plateau leaves holes",
    "12": "row start and row end from one offset",
    "13": "query sees its own unfinished group",
    "14": "suffix prefill scores only the chunk",
    "15": "causal mask absent or off by one",
    "16": "approximate top-k returns masked candidates",
    "18": "shared layers run their own indexer",
    "19": "shared layer uses a stale selection",
    "20": "draft layer skips the index-key write",
    "21": "one causal window for all rows of a sequence",
    "22": "masked lanes multiply poisoned memory",
    "23": "nothing selected divides 0 by 0",
    "25": "page table read with the wrong base or stride",
    "26": "softmax scale wrong",
    "27": "log-sum-exp in the wrong base",
    "29": "merge reads one input with the other's strides",
    "30": "page offset overflows its integer",
    "32": "output rows of padding left uninitialised",
    "33": "accumulation in bfloat16",
    "34": "fp8 scale decoded wrongly",
    "37": "latent cache read by the non-absorbed path",
    "38": "short prefill skips the indexer",
    "39": "dense where sparse is due",
    "40": "unsupported head count",
    "41": "slot -1 wraps or is written",
    "42": "padded sequence writes into a neighbour's page",
    "44": "row laid out differently by writer and reader",
    "45": "prefix restored without its index keys",
    "47": "a write reaches beyond its rows",
    "48": "locations not page-aligned per request",
    "50": "table width from two formulas",
    "51": "zero-length sequence in the pipeline",
    "53": "gather truncated silently",
    "55": "wrong cache group's page table",
    "57": "host page table reused in flight",
    "58": "pending-token ring wraps",
    "59": "missing wait or reused buffer",
    "61": "evaluation never reaches the sparse path",
}
"""Short names by the number in the public bug log that the suite is built against."""

NOT_EXPRESSIBLE: dict[str, str] = {
    "29": "no surface merges partial results; the running softmax of one kernel is covered under its own name",
    "34": "no surface has an fp8 cache; the contract takes float32 and bfloat16",
    "37": "every attention surface is absorbed; needs a module that can take either path",
    "58": "the engine waits for every step, so no token is pending; a control condition for evaluations",
    "61": "a fault of suites, not of kernels; tests/unit/test_scenarios_have_teeth.py is the guard against it",
}
"""Kinds that neither a kernel nor the system around it can show here, and why."""

OTHER: dict[str, str] = {
    "traffic": "pages are fetched that nobody needs",
    "index scale": "index scores lack a scale",
    "written": "cache write loses columns",
    "softmax": "running softmax keeps an old maximum's weight",
    "own": "decode leaves out its own token",
    "metadata": "metadata of another step or count",
    "rotary": "rotary part of the latent keys is wrong",
    "engine": "chunks, preemption, sampling or pages of an engine",
}
"""Kinds beside the log's, which our own kernels and engine make possible."""


def title(kind: str) -> str:
    """A kind with its name, for tables."""
    return f"{kind} {KINDS[kind]}" if kind in KINDS else OTHER.get(kind, kind)

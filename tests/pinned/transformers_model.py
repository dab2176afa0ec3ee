"""Pins what `transformers` makes of the random checkpoints: logits, and what every indexer chose.

Run as `python -m tests.pinned.transformers_model` where torch and transformers are installed; the tests read the pins.
"""

import json
from pathlib import Path

import numpy as np

from tests.unit.random_models import DOCUMENTS, tokens_of, weights_of

FOLDER = Path(__file__).parents[2] / "golden" / "model"
DIGITS = 7


def answers(kind: str) -> dict:
    """Logits f32[tokens, vocab] and the causal choices of each full layer, [layers][tokens][chosen]."""
    import torch
    import transformers

    names = {"glm_moe_dsa": "GlmMoeDsa", "deepseek_v32": "DeepseekV32"}
    document = {name: value for name, value in DOCUMENTS[kind].items() if name != "model_type"}
    config = getattr(transformers, f"{names[kind]}Config")(**document)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{names[kind]}ForCausalLM")(config).eval().float()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in fused(kind).items()}, strict=True)
    chosen: list[list[list[int]]] = []

    def remember(module, given, result) -> None:
        rows = result[0].tolist()
        chosen.append([sorted(c for c in row if c <= at) for at, row in enumerate(rows)])

    for layer in model.model.layers:
        if layer.self_attn.indexer is not None:
            layer.self_attn.indexer.register_forward_hook(remember)
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens_of(kind)).long()[None], use_cache=False).logits[0]
    return {"logits": logits.numpy(), "selections": chosen}


def fused(kind: str) -> dict[str, np.ndarray]:
    """The weights with experts as transformers keeps them in memory, gate and up in one."""
    weights = dict(weights_of(kind))
    experts = DOCUMENTS[kind]["n_routed_experts"]
    for name in [name for name in weights if ".experts.0.gate_proj" in name]:
        at = name.removesuffix("0.gate_proj.weight")
        parts = [
            [weights.pop(f"{at}{e}.{part}_proj.weight") for part in ("gate", "up", "down")] for e in range(experts)
        ]
        weights[f"{at}gate_up_proj"] = np.stack([np.concatenate(part[:2]) for part in parts])
        weights[f"{at}down_proj"] = np.stack([part[2] for part in parts])
    return weights


def pin(kind: str) -> str:
    """The record of one checkpoint as JSON text: every third row of logits, all selections."""
    found = answers(kind)
    rows = {
        str(at): [float(f"{x:.{DIGITS}g}") for x in found["logits"][at]] for at in range(1, len(found["logits"]), 3)
    }
    selections = [" ".join("".join(f"{c:02d}" for c in row) for row in layer) for layer in found["selections"]]
    return json.dumps({"logits": rows, "selections": selections}, indent=1) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in DOCUMENTS:
        (FOLDER / f"{name}.json").write_text(pin(name), "utf-8")

"""What a pin keeps of a tiny decoder's run, and where two such records disagree; NumPy only."""

import hashlib
import json
import re
import zlib
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[2] / "golden" / "transformers"

INDEX_STAGES = ("index_k", "index_q", "index_weights", "index_score")
STAGES = (*INDEX_STAGES, "q_nope", "q_pe", "c_kv", "k_pe", "context", "output")
"""In order of computation; a layer that shares its selection has no index stages."""

TOLERANCE = 1e-12
"""Relative to a stage's largest element. Two float64 evaluations of one formula differ by rounding alone: 2**-53 for
each of the at most 44 terms of a sum, through the 14 sums in a row of two layers, is 7e-14; the rest, a factor of 14,
is for conditioning (norms, a softmax over logits a few units apart). Measured: 1e-15; the mildest fault: 1e-10."""


def fingerprint(name: str, x: np.ndarray) -> dict:
    """Shape, largest magnitude, four elements, and the mean of all elements times fixed weights in [-1, 1)."""
    flat = np.ascontiguousarray(x, np.float64).reshape(-1)
    stream = np.random.RandomState(zlib.crc32(name.encode()))
    at = np.sort(stream.permutation(flat.size)[:4])
    return {
        "max_abs": float(np.abs(flat).max()),
        "projection": float(np.mean(flat * (stream.random_sample(flat.size) * 2.0 - 1.0))),
        "sample": [float(v) for v in flat[at]],
        "shape": list(x.shape),
    }


def record(trace: list[dict[str, np.ndarray]], sm_scale: float) -> dict:
    """The comparable part of a pin: per layer the positions that each query attends, and every stage's fingerprint."""
    layers = [
        {
            "selection": [np.flatnonzero(row).tolist() for row in stages["attended"]],
            "stages": {name: fingerprint(name, stages[name]) for name in STAGES if name in stages},
        }
        for stages in trace
    ]
    return {"layers": layers, "sm_scale": sm_scale}


def digest(arrays: dict[str, np.ndarray]) -> str:
    """SHA-256 of all input arrays: tells a broken regeneration of the inputs from a disagreement about them."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(name.encode() + np.ascontiguousarray(arrays[name], "<f8").tobytes())
    return total.hexdigest()


def differences(pin: dict, found: dict) -> dict[str, float]:
    """How far each part of a record is from the pin: `layer 0 q_pe` -> relative to the pin's largest element.

    A selection counts the rows that differ; a shape or a stage that differs counts as infinitely far.
    """
    far = {"sm_scale": abs(found["sm_scale"] / pin["sm_scale"] - 1.0)}
    for i, (ours, theirs) in enumerate(zip(found["layers"], pin["layers"], strict=True)):
        parts = {name: _far(ours["stages"].get(name), theirs["stages"].get(name)) for name in STAGES}
        rows = zip(ours["selection"], theirs["selection"], strict=True)
        parts["selection"] = float(sum(a != b for a, b in rows))
        order = (*INDEX_STAGES, "selection", *STAGES[len(INDEX_STAGES) :])
        far |= {f"layer {i} {name}": parts[name] for name in order}
    return far


def _far(ours: dict | None, theirs: dict | None) -> float:
    if ours is None and theirs is None:
        return 0.0
    if ours is None or theirs is None or ours["shape"] != theirs["shape"]:
        return float("inf")
    pairs = [(ours[key], theirs[key]) for key in ("max_abs", "projection")]
    pairs += zip(ours["sample"], theirs["sample"], strict=True)
    worst = max(abs(a - b) for a, b in pairs)
    return worst / theirs["max_abs"] if np.isfinite(worst) else float("inf")


def disagreements(pin: dict, found: dict) -> list[str]:
    """The parts of a record that are farther from the pin than rounding takes them, in order of computation."""
    return [part for part, far in differences(pin, found).items() if not far <= TOLERANCE]


def read(case: str) -> dict:
    """The pin of a case."""
    return json.loads((FOLDER / f"{case}.json").read_text())


def write(case: str, pin: dict) -> Path:
    """Write a pin for review: sorted keys, one line per list of numbers."""
    text = json.dumps(pin, sort_keys=True, indent=1)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{case}.json"
    path.write_text(text + "\n")
    return path

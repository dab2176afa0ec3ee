"""A small GLM-MoE-DSA checkpoint that retrieves: built by hand from its circuit, in seconds, the same bits every time.

Text repeats itself: where a pair of words has occurred before, the word that followed it then is a good guess now.
Three layers compute that guess, over any distance, and each needs its indexer to select the right tokens:

    layer 0, full     three heads look one, two and no tokens back, by rotary position alone, and note who stands there
    layer 1, full     a query (the last two words) attends where the words before a token are the same two, and takes
                      that token; its indexer scores the same agreement in 32 random directions for each word
    layer 2, shared   the same once more, over the selection of layer 1

A token learns even its own word by attending itself, so that a causal bound that is one short ruins the answer.

The residual stream is `[word | one back | two back | guess | here | one]`. Words are random unit vectors, nearly
orthogonal, so a match has logit SHARPNESS and an accident a fraction of it. Where the same pair was followed by
different words, the guess is the one that followed most often; to know that, a step must keep every page where it
occurred.
"""

import re
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np

from dsa_verify.model.checkpoint import shapes_of, write_checkpoint
from dsa_verify.model.model_config import ModelConfig, parse_config

SEED = 2048
WORD = 128
"""Dimensions of a word."""
NEAR, SHARPNESS = 14.0, 16.0
"""Logit by which the right distance leads (times about 1.1, the least that a neighbour's cosines fall short), and logit
of one word that agrees."""
SKETCH = 32
"""Directions in which an indexer compares one word."""
END = "␄"
"""The sign that a text ends with; its token ends an answer."""

EMBEDDED, ONE_BACK, TWO_BACK, GUESS, HERE = (slice(WORD * n, WORD * (n + 1)) for n in range(5))
CONSTANT = 5 * WORD
HEADS = 3
DOCUMENT = {
    "model_type": "glm_moe_dsa", "vocab_size": 8192, "hidden_size": 5 * WORD + 32, "intermediate_size": 64,
    "moe_intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
    "n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "kv_lora_rank": 3 * WORD,
    "q_lora_rank": 2 * WORD + 32, "qk_rope_head_dim": 64, "qk_nope_head_dim": 2 * WORD, "v_head_dim": WORD,
    "index_topk": 512, "index_head_dim": 128, "index_n_heads": 4, "first_k_dense_replace": 1, "rms_norm_eps": 1e-6,
    "indexer_types": ["full", "full", "shared"], "routed_scaling_factor": 1.0, "norm_topk_prob": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "eos_token_id": 0,
    "max_position_embeddings": 131072, "tie_word_embeddings": False, "attention_bias": False, "hidden_act": "silu",
}  # fmt: skip
"""Its config.json."""


class Words:
    """Text as tokens: a word or a sign is one, by a hash of its lower case; 0 is END, 1 is none in particular."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {0: "", 1: "?"}

    def encode(self, text: str) -> list[int]:
        """Tokens of a text. The same word has the same token in every process."""
        return [self._token(word) for word in re.findall(r"\w+|[^\w\s]", text)]

    def decode(self, tokens: list[int]) -> str:
        """Words of tokens; those that were never encoded here are shown as numbers."""
        return " ".join(self._seen.get(token, f"<{token}>") for token in tokens if token)

    def _token(self, word: str) -> int:
        if word == END:
            return 0
        token = 2 + zlib.crc32(word.lower().encode()) % (DOCUMENT["vocab_size"] - 2)
        self._seen.setdefault(token, word)
        return token


def write_tiny(folder: Path) -> None:
    """Write the checkpoint into a directory."""
    write_checkpoint(folder, DOCUMENT, tiny_weights())


def tiny_config() -> ModelConfig:
    """Its configuration, without a file."""
    return parse_config(DOCUMENT, "the built-in model")


@lru_cache(maxsize=1)
def tiny_weights() -> dict[str, np.ndarray]:
    """Float32 weights by their names in a checkpoint."""
    shapes = shapes_of(tiny_config())
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    for name in weights:
        if "norm.weight" in name:
            weights[name][:] = 1.0
    words = _unit(_random("words", DOCUMENT["vocab_size"], WORD))
    weights["model.embed_tokens.weight"][:, EMBEDDED] = words
    weights["model.embed_tokens.weight"][:, CONSTANT] = 1.0
    weights["lm_head.weight"][:, GUESS] = words
    _look_back(weights, "model.layers.0.")
    for layer in (1, 2):
        _repeat(weights, f"model.layers.{layer}.")
    _hum(weights)
    return weights


def _look_back(w: dict[str, np.ndarray], at: str) -> None:
    """Layer 0: each head attends the token so many back, and writes its word where layer 1 looks for it."""
    a = at + "self_attn."
    # The stream holds a word and the constant, both of size 1; the norm makes their squares the width in all.
    size = (tiny_config().hidden_size / 2) ** 0.5
    w[a + "q_a_proj.weight"][2 * WORD, CONSTANT] = 1.0
    constant = tiny_config().q_lora_rank ** 0.5  # alone in the query latent, after its norm
    amplitude = (NEAR / tiny_config().sm_scale) ** 0.5
    heads = w[a + "q_b_proj.weight"].reshape(HEADS, -1, tiny_config().q_lora_rank)
    for head, back in enumerate((1, 2, 0)):
        heads[head, 2 * WORD :, 2 * WORD] = amplitude / constant * _phase(back)
    kv = w[a + "kv_a_proj_with_mqa.weight"]
    kv[EMBEDDED, EMBEDDED] = np.eye(WORD)
    kv[3 * WORD :, CONSTANT] = amplitude / size * _phase(0)
    values = w[a + "kv_b_proj.weight"].reshape(HEADS, -1, 3 * WORD)
    out = w[a + "o_proj.weight"]
    for head, to in enumerate((ONE_BACK, TWO_BACK, HERE)):
        values[head, 2 * WORD :, EMBEDDED] = np.eye(WORD)
        out[to, head * WORD : (head + 1) * WORD] = np.eye(WORD) / (3 * WORD) ** 0.5
    queries = w[a + "indexer.wq_b.weight"].reshape(4, 128, -1)
    for head in range(4):
        queries[head, :64, 2 * WORD] = _phase(1 + head % 2) / constant
    w[a + "indexer.wk.weight"][:64, CONSTANT] = _phase(0)
    _index_norm(w, a)


def _repeat(w: dict[str, np.ndarray], at: str) -> None:
    """Layers 1 and 2: attend where both words before a token agree with the last two, and guess that token."""
    a = at + "self_attn."
    w[a + "q_a_proj.weight"][:WORD, HERE] = np.eye(WORD)
    w[a + "q_a_proj.weight"][WORD : 2 * WORD, ONE_BACK] = np.eye(WORD)
    # Two words of size 1 share the query latent, three the key latent.
    of_query, of_key = (tiny_config().q_lora_rank / 2) ** 0.5, WORD**0.5
    gain = SHARPNESS / tiny_config().sm_scale / (of_query * of_key)
    queries = w[a + "q_b_proj.weight"].reshape(HEADS, -1, tiny_config().q_lora_rank)
    unfold = w[a + "kv_b_proj.weight"].reshape(HEADS, -1, 3 * WORD)
    for head in range(2):
        queries[head, : 2 * WORD, : 2 * WORD] = gain * np.eye(2 * WORD)
        unfold[head, :WORD, ONE_BACK] = np.eye(WORD)
        unfold[head, WORD : 2 * WORD, TWO_BACK] = np.eye(WORD)
        unfold[head, 2 * WORD :, EMBEDDED] = np.eye(WORD)
    w[a + "kv_a_proj_with_mqa.weight"][: 3 * WORD, : 3 * WORD] = np.eye(3 * WORD)
    w[a + "o_proj.weight"][GUESS, : 2 * WORD] = np.hstack([np.eye(WORD)] * 2) / of_key
    if a + "indexer.wk.weight" in w:
        sketch = _random("sketch", SKETCH, WORD) / WORD**0.5
        key, asked = w[a + "indexer.wk.weight"], w[a + "indexer.wq_b.weight"].reshape(4, 128, -1)
        for lane, before, last in ((64, ONE_BACK, slice(0, WORD)), (64 + SKETCH, TWO_BACK, slice(WORD, 2 * WORD))):
            key[lane : lane + SKETCH, before] = sketch
            asked[:, lane : lane + SKETCH, last] = sketch
        _index_norm(w, a)


def _index_norm(w: dict[str, np.ndarray], a: str) -> None:
    w[a + "indexer.k_norm.weight"][:] = 1.0
    w[a + "indexer.weights_proj.weight"][:, CONSTANT] = 1.0


def _hum(w: dict[str, np.ndarray]) -> None:
    """Small random MLPs and routers: experts are chosen and run, and disturb nothing."""
    for name, value in w.items():
        if ".mlp." in name and value.ndim == 2:
            value[:] = 0.01 * _random(name, *value.shape)


def _phase(back: int) -> np.ndarray:
    """f64[64]: the rotary part of a query that looks `back` tokens; of a key, with 0. Pairs are neighbours, and signs
    alternate so that the mean is 0, which the indexer's norm takes out."""
    angle = -back * np.array(tiny_config().rotary)
    sign = np.where(np.arange(len(angle)) % 2, -1.0, 1.0)
    return (sign[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)).ravel()


def _random(name: str, *shape: int) -> np.ndarray:
    """f64[shape] of unit normals, one stream a name."""
    return np.random.RandomState([SEED, zlib.crc32(name.encode())]).standard_normal(shape)


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)

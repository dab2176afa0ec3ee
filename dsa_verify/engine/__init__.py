"""Requests -> steps: continuous batching, chunked prefill, radix prefix cache, over any runner of paged steps."""

from dsa_verify.engine.engine import Engine
from dsa_verify.engine.engine_config import EngineConfig
from dsa_verify.engine.events import Admitted, Event, Evicted, Finished, Preempted, Queued, Report, Token
from dsa_verify.engine.packing import Row, pack
from dsa_verify.engine.request import GenerationRequest
from dsa_verify.engine.sampling import Sampling
from dsa_verify.engine.step import Runner, Step

__all__ = [
    "Admitted",
    "Engine",
    "EngineConfig",
    "Event",
    "Evicted",
    "Finished",
    "GenerationRequest",
    "Preempted",
    "Queued",
    "Report",
    "Row",
    "Runner",
    "Sampling",
    "Step",
    "Token",
    "pack",
]

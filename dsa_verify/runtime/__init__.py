"""How kernels run: natively on a TPU, or in TPU interpret mode on a CPU with races, NaN memory and bounds watched."""

from dsa_verify.runtime.run import Observation, environment, interpreted, run
from dsa_verify.runtime.watch import Finding, Traffic

__all__ = ["Finding", "Observation", "Traffic", "environment", "interpreted", "run"]

"""Settles JAX's environment before anything imports it, and finds the plugin in a checkout that is not installed."""

import os
from importlib.metadata import entry_points

from dsa_verify.run import workers

_SHARING = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

workers.prepare_environment(threads=max(1, (os.cpu_count() or 1) // _SHARING) if _SHARING > 1 else None)
os.environ.setdefault("JAX_ENABLE_X64", "0")

if not entry_points(group="pytest11", name="dsa_verify"):
    pytest_plugins = ["dsa_verify.plugin"]

"""Providers that are wrong in one way each, or only print, for the tests of the front ends; `broken_providers:NAME`."""

import os
import signal
import time

from dsa_verify.contract import SURFACES, Kernel, Provider


def _cache_write(**operands):
    from dsa_verify.kernels.jnp import attention

    return attention.cache_write(**operands)


def _raises(**operands):
    raise ValueError("no such layout")


def _wrong_shape(**operands):
    return _cache_write(**operands)[:-1]


def _nan(**operands):
    return _cache_write(**operands) * float("nan")


def _two_outputs(**operands):
    written = _cache_write(**operands)
    return written, written


def _dies_on_bfloat16(**operands):
    if operands["cache_kv"].dtype == "bfloat16":
        os.kill(os.getpid(), signal.SIGKILL)
    return _cache_write(**operands)


def _prints(**operands):
    print("printed by a kernel")
    os.write(1, b"written by native code\n")
    return _cache_write(**operands)


def _sleeps(**operands):
    print("a kernel sleeps")
    time.sleep(120)


def _only(name, fn):
    return Provider(name, "0", {"cache_write": Kernel(fn)})


def raises_on_load():
    raise OSError("the checkout is from another planet")


raises = _only("raises", _raises)
wrong_shape = _only("wrong_shape", _wrong_shape)
nan = _only("nan", _nan)
two_outputs = _only("two_outputs", _two_outputs)
dies = _only("dies", _dies_on_bfloat16)
prints = _only("prints", _prints)
sleeps = _only("sleeps", _sleeps)
empty = Provider("empty", "0", {}, dict.fromkeys(SURFACES, "its kernels need a SparseCore"))
number = 3

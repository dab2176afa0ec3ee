"""Providers by name, loaded on first use; a provider imports its package only inside the function that loads it."""

import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from dsa_verify.contract import SURFACES, Provider
from dsa_verify.errors import ConfigError, DsaVerifyError, ProviderError, unknown_name

ENTRY_POINTS = "dsa_verify.providers"

BUILT_IN = {
    "builtin": "dsa_verify.kernels.providers.builtin:load",
    "jnp": "dsa_verify.kernels.providers.jnp:load",
    "sglang_jax": "dsa_verify.kernels.providers.sglang_jax:load",
    "tpu_inference": "dsa_verify.kernels.providers.tpu_inference:load",
}


def provider_names() -> dict[str, str]:
    """Every known provider and where its loader is: the built-in table and the installed entry points."""
    return {**{point.name: point.value for point in entry_points(group=ENTRY_POINTS)}, **BUILT_IN}


def load_provider(name: str, path: Path | None = None) -> Provider:
    """Load a provider.

    Args:
      name: one of `provider_names()`, or `module:object` where the object is a `Provider` or a function that
        returns one.
      path: a source checkout to put on the import path first.

    Raises `ConfigError` for an unknown name or path, `ProviderError` when the provider cannot be imported or is none.
    """
    known = provider_names()
    if ":" not in name and name not in known:
        raise unknown_name("provider", name, known)
    if path is not None:
        if not path.is_dir():
            raise ConfigError(f"--provider-path {path} is not a directory; give the folder to import from")
        if str(path) not in sys.path:
            sys.path.insert(0, str(path))
    provider = _resolve(known.get(name, name))
    if not isinstance(provider, Provider):
        raise ProviderError(
            f"{known.get(name, name)} gave {type(provider).__name__}, expected a dsa_verify.contract.Provider "
            f"or a function without arguments that returns one"
        )
    for surface in (*provider.kernels, *provider.missing):
        if surface not in SURFACES:
            raise ProviderError(f"provider {provider.name} names a surface {surface!r}; known: {', '.join(SURFACES)}")
    return provider


def serving(kernels: str) -> Provider:
    """The built-in kernels as a backend serves with them, at their own tiles: those of `pallas`, or those of `jnp`."""
    from dsa_verify.kernels.providers import builtin, jnp

    return builtin.serving() if kernels == "pallas" else jnp.load()


def _resolve(target: str) -> object:
    module, _, attribute = target.partition(":")
    try:
        found = getattr(import_module(module), attribute)
        return found() if callable(found) else found
    except DsaVerifyError:
        raise
    except Exception as error:  # whatever a stranger's module raises while it loads
        raise ProviderError(f"cannot load provider {target}: {type(error).__name__}: {error}") from error

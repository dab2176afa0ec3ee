"""What a server says about itself: the model that it lists, and its settings and counters where it states them."""

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from dsa_verify.errors import ConfigError
from dsa_verify.gates.arms.payload import Endpoint

if TYPE_CHECKING:  # a package that may be absent, which the command says in words of its own
    import httpx

ATTEMPTS = 3
"""Of asking a server what it is, a second apart while it is away."""


def server_info(endpoint: Endpoint) -> dict[str, Any]:
    """What a server says about itself, where this suite's own server and SGLang's say it; {} if nothing."""
    import httpx

    for path in ("/server_info", "/get_server_info") * ATTEMPTS:
        try:
            response = _get(endpoint, path)
            if response.status_code == 200 and isinstance(response.json(), dict):
                return response.json()
            if response.status_code >= 500:
                time.sleep(1.0)
        except (httpx.HTTPError, ValueError):
            continue
    return {}


def with_model(endpoint: Endpoint) -> Endpoint:
    """The endpoint with the model that its server lists, where none is named; also then, something must listen."""
    listed = served_model(endpoint)
    return endpoint if endpoint.model else dataclasses.replace(endpoint, model=listed)


def served_model(endpoint: Endpoint) -> str:
    """The first model that a server lists, `default` if it lists none.

    Raises `ConfigError` where nothing listens: better now than after hours with the other arm.
    """
    import httpx

    for wait in range(ATTEMPTS):
        try:
            time.sleep(wait)
            response = _get(endpoint, "/v1/models")
            if response.status_code in (401, 403):
                raise ConfigError(
                    f"{endpoint.root} answers {response.status_code} when it is asked for its models; give the name of "
                    "the variable that holds its token as --token-env."
                )
            if response.status_code < 500:
                return str(response.json()["data"][0]["id"])
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ConfigError(
                f"nothing answers at {endpoint.root} ({error}); start the server, or correct the URL"
            ) from None
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            continue
    return "default"


def _get(endpoint: Endpoint, path: str) -> "httpx.Response":
    import httpx

    return httpx.get(endpoint.root + path, headers=endpoint.headers, timeout=10.0, trust_env=not endpoint.local)

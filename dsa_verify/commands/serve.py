"""`dsa-verify serve`: an OpenAI-compatible endpoint over the engine, with the built-in model or a checkpoint."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

_FOLDER = click.Path(file_okay=False, path_type=Path)
_COUNT = click.IntRange(min=1)


@click.command()
@click.option("--model", type=_FOLDER, metavar="DIR", help="A Hugging Face checkpoint.  [default: the built-in model]")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0 takes a free one.")
@click.option("--index-topk", type=_COUNT, metavar="N", help="[default: the model's own; 128 for the built-in one]")
@click.option("--page-size", type=_COUNT, metavar="N", default=16, show_default=True)
@click.option("--context-length", type=_COUNT, metavar="N", default=2048, show_default=True, help="Prompt and answer.")
@click.option("--chunk-tokens", type=_COUNT, metavar="N", default=64, show_default=True, help="Of one step.")
@click.option(
    "--concurrency", type=_COUNT, metavar="N", default=1, show_default=True, help="Requests that run at once."
)
@click.option("--prefix-cache", is_flag=True, help="Keep pages of prompts for later ones; a gate wants none.")
@click.option("--kernels", type=click.Choice(["pallas", "jnp"]), help="[default: pallas on a TPU, jnp elsewhere]")
def serve(host: str, port: int, **options: Any) -> None:
    """Serve a model over HTTP; its URL is the one line on stdout.

    DSA_* variables choose the attention backend, as in SGLang-JAX: DSA_PREFILL_SPARSE=1 makes prefill sparse. Requests
    under way when the server is ended get what they have, with finish reason `abort`.
    """
    from dsa_verify.errors import ConfigError
    from dsa_verify.run import workers

    absent = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if absent:
        raise ConfigError(f"serve needs the package {absent[0]}; pip install 'dsa-verify[gate]'")
    workers.prepare_environment()
    from dsa_verify.serve import model, run

    run.run(model.ServerSettings(**options), host, port, click.echo)

"""The command line: it registers the commands; stdout is the result, stderr the rest, the exit code the verdict."""

import traceback

import click

from dsa_verify import __version__, errors
from dsa_verify.commands.compile import compile_kernels
from dsa_verify.commands.doctor import doctor
from dsa_verify.commands.gate import gate
from dsa_verify.commands.golden import golden
from dsa_verify.commands.list_show import list_names, show
from dsa_verify.commands.mutants import mutants
from dsa_verify.commands.output import EXITS
from dsa_verify.commands.parity import parity
from dsa_verify.commands.profile import profile
from dsa_verify.commands.report import report
from dsa_verify.commands.serve import serve


class _Commands(click.Group):
    """A group in which refusals are one line on stderr, and anything else unexpected says that the suite broke."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (errors.ConfigError, errors.BatchError, errors.ContractError, errors.ProviderError) as error:
            click.echo(f"dsa-verify: {_one_line(error)}", err=True)
            ctx.exit(errors.Exit.USAGE)
        except errors.DsaVerifyError as error:
            click.echo(f"dsa-verify: {_one_line(error)}", err=True)
            ctx.exit(errors.Exit.BROKE)
        except KeyboardInterrupt:
            click.echo("dsa-verify: interrupted; nothing is decided", err=True)
            ctx.exit(errors.Exit.INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception:
            click.echo(f"dsa-verify: the suite broke\n{traceback.format_exc()}", err=True)
            ctx.exit(errors.Exit.BROKE)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@click.group(cls=_Commands, epilog=EXITS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dsa-verify")
def main() -> None:
    """Judge DeepSeek Sparse Attention kernels for TPU against float64 oracles."""


for command in (parity, list_names, show, doctor, compile_kernels, gate, golden, mutants, profile, report, serve):
    main.add_command(command)

"""`dsa-verify list` and `show`: the names of the suite, and what each of them means."""

import click

from dsa_verify.errors import unknown_name


@click.command("list")
@click.argument("kind", required=False, metavar="[surfaces|providers|scenarios|checks|families|mutants]")
def list_names(kind: str | None) -> None:
    """Print names, one a line; all of them with their kind if none is given."""
    from dsa_verify.commands import explain

    names = explain.names()
    if kind is None:
        for group, members in names.items():
            for name in members:
                click.echo(f"{group}\t{name}")
        return
    if kind not in names:
        raise unknown_name("kind", kind, names)
    click.echo("\n".join(names[kind]))


@click.command()
@click.argument("name")
def show(name: str) -> None:
    """Print what a scenario, surface, check, family or handwritten mutant is."""
    from dsa_verify.commands import explain

    click.echo(explain.explain(name))

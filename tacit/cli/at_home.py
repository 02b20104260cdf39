"""`tacit deploy site SITE --adapt | --evaluate FILE | --publish-personal`: a site's own models, for its own people."""

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.errors import BadInput
from tacit.federation.operate.site_page import write_site_page
from tacit.federation.site import new_rows, own_models
from tacit.federation.site.at_home import compared, due, newest, wanted
from tacit.federation.site.join import read_settings
from tacit.federation.site.publish import publish as publish_model
from tacit.plugin import only_installed
from tacit.privacy.guarantee import shown


def command(
    folder: Path, *, adapt: bool, evaluate: Path | None, publish: bool, epsilon: float | None, run: str | None
) -> None:
    """Does the one thing that was asked for, and prints what came of it. Raises BadInput in one sentence."""
    only_installed()
    if adapt + (evaluate is not None) + publish != 1:
        raise BadInput("Say one of --adapt, --evaluate FILE and --publish-personal; --run and --epsilon go with them.")
    if epsilon is not None and not publish:
        raise BadInput("--epsilon is what a published model costs: say --publish-personal too, or leave it out.")
    console = Console()
    if evaluate is not None:
        _show(new_rows.in_words(new_rows.evaluate(folder, evaluate, run=run)), console)
    elif publish:
        made = publish_model(folder, run=run, epsilon=epsilon)
        console.print(
            Text(f"Published: {made.folder}, for epsilon {shown(made.epsilon)}. {made.promise}"), soft_wrap=True
        )
    else:
        _adapt(folder, run, console)
    console.print(Text(f"Report: {write_site_page(folder)} (for this site alone)"), soft_wrap=True)


def _adapt(folder: Path, run: str | None, console: Console) -> None:
    """Makes what is due, and prints the comparison of the newest run, or of the one that is named."""
    if wanted(read_settings(folder)).kind is None:
        raise BadInput(
            'site.toml asks for no own models: add held_out = 0.2 and, below it, [personal] with kind = "mean-regularised".'
        )
    meant = newest(folder, run)
    for one in [meant] if run else due(folder):
        own_models.adapt(folder, one)
    told = compared(folder, meant)
    if told is not None:
        _show(own_models.in_words(told), console)


def _show(lines: Iterable[tuple[str, str]], console: Console) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, text in lines:
        table.add_row(Text(name, style="dim"), Text(text))
    console.print(table)

"""Options that several commands have."""

from typing import Annotated

import typer

from tacit.experiment.file import shipped

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one setting; may be repeated.")
]
EXPERIMENT = f"EXPERIMENT is a TOML file, or one that ships with Tacit: {', '.join(shipped())}; digits if left out."
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

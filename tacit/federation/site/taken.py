"""Which of a site's models is used: `tacit predict SITE new.csv`."""

from pathlib import Path

from tacit.errors import BadInput
from tacit.federation.site import layout
from tacit.federation.site.at_home import MODEL, compared, runs
from tacit.federation.site.own_models import NOT_FOR_OTHERS
from tacit.personal.own import STAYS


def taken(path: Path, asked: str | None) -> tuple[Path, str]:
    """The model that a site's folder, or one of its runs' folders, is used with, and a sentence that says which and why.

    Left out, it is the better of own and common by the site's held-out rows; where nothing was compared, the common one. A folder
    that is neither is taken as it is.

    Raises: BadInput for a model that is not there, and for a choice where there is none.
    """
    site = _site(path)
    if site is None:
        if asked is not None:
            raise BadInput(f"--model is for a site's folder, and {path} is none: leave it out.")
        said = (path / NOT_FOR_OTHERS).is_file()
        return path, STAYS if said else ""
    folder, run = site
    told = compared(folder, run)
    which = asked or (told["better"] if told else layout.COMMON)
    chosen = layout.model_folder(folder, run, which)
    if which == layout.OWN and (told is None or not (chosen / MODEL).is_file()):
        raise BadInput(
            f"The site has no own model of run {run}: set [personal] in site.toml, or wait until it is made."
        )
    why = "as asked" if asked else f"the better on {told['rows']} held-out rows" if told else "nothing was compared yet"
    stays = f" {STAYS}" if which == layout.OWN else ""
    return chosen, f"With the site's {which} model of run {run} ({why}).{stays}"


def _site(path: Path) -> tuple[Path, str] | None:
    """The site's folder and the run that a path means; None where it is neither a site's nor a run's at a site."""
    try:
        if (path / layout.SETTINGS).is_file():
            return path, runs(path)[0]
        if (path / layout.AGREEMENT).is_file() and path.resolve().parent.name == layout.RUNS:
            return path.resolve().parents[1], path.resolve().name
    except IndexError:
        raise BadInput(f"{path} holds no model of a run: the server sends it when a run has ended.") from None
    return None

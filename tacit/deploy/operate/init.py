"""`tacit deploy init`: a folder with everything a federation needs, each part for the machine it belongs to."""

from pathlib import Path

import tacit
from tacit.check import shown
from tacit.crypto.threshold import fewest_shares
from tacit.data.csv import feature_columns
from tacit.data.partition import budgets
from tacit.data.sources import csv, source
from tacit.data.texts import listing
from tacit.deploy.operate.certificates import make_authority, make_node_key, make_server
from tacit.deploy.operate.layout import CONNECTION, FILE, Federation, app_digest, refuse_host
from tacit.deploy.operate.processes import close, closed, free_port
from tacit.deploy.operate.remaining import refuse_unbuildable
from tacit.deploy.site.consent import OWN_FILES, refuse_undeployable, refuse_unpinned
from tacit.deploy.site.keys import make_keys
from tacit.deploy.site.layout import SETTINGS, called
from tacit.deploy.site.limits import make_site
from tacit.deploy.site.replies import refuse_unpaid
from tacit.engine.assemble import clients
from tacit.errors import BadInput, BudgetExhausted
from tacit.experiment import Experiment
from tacit.experiment.file import dumps, refuse_passed
from tacit.privacy.distributed.kind import refuse_threshold
from tacit.random import seeded

SERVICES = "services"
PROGRAM, STATE, VOLUME = "/opt/tacit/bin/tacit", "/var/lib/tacit", "/federation"
USER = 10001  # of a container: nobody on the machine
OWN_ROWS = """ The site puts its rows into
`sites/NAME/records.{kind}`, or names another file in `site.toml`."""
SERVER = """\
from pathlib import Path

from tacit.deploy.server.server import server_app

app = server_app(Path(__file__).with_name("experiment.toml"))
"""
CLIENT = """\
from tacit.deploy.server.client import client_app

app = client_app()
"""


def init(folder: Path, *, sites: str, experiment: Experiment, host: str, port: int, trial: bool = False) -> Federation:
    """Makes a federation's folder: certificates, a folder for every site, the Flower app, units and container files, and a README.

    Guarantee: all of it is its owner's only, and no name in the experiment becomes code, consent or a path. The experiment,
    which is judged before anything is written, names every site's epsilon; its budget file accepts this experiment alone.
    """
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty: choose another folder, or remove it together with its ledgers.")
    refuse_host(host)
    experiment = deployable(experiment, sites, trial=trial)
    limits = site_budgets(experiment, sites)
    if experiment.privacy.epsilon is not None:  # all agree to it, and the server refuses who declares more
        values = experiment.model_dump(exclude_none=True)
        experiment = Experiment(**values | {"privacy": values["privacy"] | {"epsilon": dict(limits)}})
    refuse_unbuildable(experiment, limits)
    for name in limits:  # what the sites would refuse when they are asked to agree
        try:
            refuse_unpaid(experiment, limits, delta=experiment.privacy.delta, site=name)
        except BudgetExhausted as error:
            raise BudgetExhausted(f"{name}: {error}") from error
    server = folder / "server"
    with closed():
        server.mkdir(parents=True)
    make_authority(server, name=called(experiment.name))
    make_server(server, hosts=tuple(dict.fromkeys((host, "127.0.0.1", "localhost"))))
    names = {"name": experiment.name, "host": host, "sites": tuple(limits), "folder": folder.resolve()}
    federation = Federation(**names, port=port, inner_port=free_port(), app_sha256="")
    (server / "nodes").mkdir()
    for site, epsilon in limits.items():
        own = federation.site(site)
        make_site(own, experiment, name=site, epsilon=epsilon)
        make_node_key(own)
        federation.public_key(site).write_bytes((own / "node.pub").read_bytes())
        (own / "ca.crt").write_bytes((server / "ca.crt").read_bytes())
        with (own / SETTINGS).open("a", encoding="utf-8") as file:
            file.write(f'server = "{federation.address}"\n')
    if experiment.protect.kind != "none":
        make_keys(experiment, server, {site: federation.site(site) for site in limits})
    package, words = federation.app / "tacit_app", {"version": tacit.__version__, "name": called(federation.name)}
    package.mkdir(parents=True)
    text = template("pyproject.txt", sites=",".join(federation.sites), **words)
    (federation.app / "pyproject.toml").write_text(text, "utf-8")
    (package / "__init__.py").write_text(f'"""{words["name"]}, by Tacit."""\n', "utf-8")
    (package / "server_app.py").write_text(SERVER, "utf-8")
    (package / "client_app.py").write_text(CLIENT, "utf-8")
    (package / "experiment.toml").write_text(experiment.toml(), "utf-8")
    federation = federation.model_copy(update={"app_sha256": app_digest(federation.app)})
    (folder / FILE).write_text(dumps(federation.model_dump(mode="json")), "utf-8")
    federation.write_flower()
    write_services(federation)
    (folder / "README.md").write_text(readme(federation, experiment), "utf-8")
    close(folder)
    return federation


def deployable(experiment: Experiment, sites: str, *, trial: bool) -> Experiment:
    """The experiment as it is deployed: as many clients as sites, and, unless `trial`, the operating system's noise. A
    threshold left out is the smallest that holds against `privacy.colluding` sites. Raises: BadInput, BadData.
    """
    refuse_passed(experiment)
    values = experiment.model_dump(exclude_none=True)
    if not trial:
        values["run"]["randomness"] = "os"
    if experiment.data.name not in OWN_FILES:
        if not sites.isdecimal():
            count = len(sites.split(","))
            raise BadInput(
                f"The {experiment.data.name} data comes with Tacit and is dealt out to client-0, client-1, ...: give the number"
                f" of sites, as in --sites {count}; names are for csv and npz, where every site has its own rows."
            )
        values["data"]["clients"] = int(sites)
    count = int(sites) if sites.isdecimal() else len(sites.split(","))
    if experiment.protect.kind == "paillier" and experiment.protect.threshold is None:
        values["protect"]["threshold"] = fewest_shares(of=count, colluding=experiment.privacy.known_shares)
    chosen = Experiment(**values)
    refuse_undeployable(chosen)
    refuse_threshold(chosen, clients=count)
    options = chosen.data.options()
    if chosen.data.name in OWN_FILES and "test_path" in options:  # it, and the columns that its rows have, are pinned
        pinned = {"test_path": str(Path(str(options["test_path"])).expanduser().resolve())}
        files = source(chosen.data)
        columns = {}
        if isinstance(files, csv):  # so that everybody reads the same ones in the same order
            tests = listing(files.test_path, key="data.test_path")
            columns["columns"] = list(feature_columns(tests[0], files))
        values = chosen.model_dump(exclude_none=True)
        chosen = Experiment(**values | {"data": values["data"] | pinned | columns})
    elif chosen.data.name in OWN_FILES:
        refuse_unpinned(chosen)
    return chosen


def site_budgets(experiment: Experiment, sites: str) -> dict[str, float]:
    """Every site's name and first epsilon. Raises: BadInput for names that are no plain words: they become folders and
    certificates.
    """
    if experiment.data.name not in OWN_FILES:
        _, _, population = clients(experiment)
        for name in population.names:
            if not _plain(name):
                raise BadInput(
                    f"A client of this data is called {shown(name)}, which cannot be the name of a site's folder."
                )
        return dict(zip(population.names, population.epsilons.tolist(), strict=True))
    names = tuple(name.strip() for name in sites.split(","))
    if sites.isdecimal() or len(set(names)) < len(names) or not all(_plain(name) for name in names):
        raise BadInput("Every site has its own rows here: name them, each once, as in --sites north,coast,valley.")
    spec = experiment.privacy.epsilon if experiment.privacy.epsilon is not None else float("inf")
    rng = seeded(experiment.seeds.data)("budgets").generator()
    return dict(zip(names, budgets(spec, clients=len(names), rng=rng, names=names).tolist(), strict=True))


def _plain(name: str) -> bool:
    return bool(name) and name.replace("-", "").replace("_", "").isalnum() and name.isascii()


def template(name: str, /, **words: object) -> str:
    return Path(__file__).with_name("templates").joinpath(name).read_text("utf-8").format(**words)


def readme(federation: Federation, experiment: Experiment) -> str:
    """The README's text for one federation: its sites, address and ports, and who can open its sums. Paths are relative to it."""
    kind, sites, count, keys = experiment.data.name, federation.sites, len(federation.sites), ""
    if experiment.protect.kind == "paillier":
        t = experiment.protect.threshold or 1
        few = f", and with {count - t + 1} of them lost no sum can be opened any more"
        lost = few if t < count else ", and every one is needed"
        keys = template("keys-common.md") if t == 1 else template("keys-split.md", t=t, n=count, lost=lost)
    if experiment.protect.kind == "masks":
        t = fewest_shares(of=count, colluding=experiment.privacy.known_shares)
        keys = template("keys-masks.md", t=t, n=count)
    return template(
        "README.md",
        name=called(federation.name),
        count=count,
        address=federation.address,
        port=federation.port,
        inner=federation.inner_port,
        connection=CONNECTION,
        keys=keys,
        data=OWN_ROWS.format(kind=kind) if kind in OWN_FILES else "",
        sites="\n".join(f"    tacit deploy check sites/{name} && tacit deploy site sites/{name}" for name in sites),
    )


def write_services(federation: Federation) -> None:
    """A systemd unit and a container file for the server and every site; none names a place of this machine, or a secret."""
    name, port = called(federation.name), federation.port
    public = {"publish": f"--publish {port}:{port} ", "expose": f"EXPOSE {port}\n", "about": "README.md"}
    private = {"publish": "", "expose": "", "about": "budget.toml", "secret": "rows"}
    title = f"The server of {name}, a federation by Tacit"
    server = {"image": "tacit-server", "title": title, "secret": "what sites have sent", "home": "federation"}
    units = [(federation.folder, "server", server | public)]
    for site in federation.sites:
        words = {"image": f"tacit-site-{site.lower()}", "title": f"Site {site} of {name}, a federation by Tacit"}
        units.append((federation.site(site), "site", words | private | {"home": site}))
    common = {"program": PROGRAM, "state": STATE, "volume": VOLUME, "user": str(USER), "version": tacit.__version__}
    for folder, command, words in units:
        unit = f"{words['image']}.service"
        words |= common | {"command": command, "unit": unit, "folder": f"{STATE}/{words['home']}"}
        (folder / SERVICES).mkdir(mode=0o700)
        (folder / SERVICES / unit).write_text(template("unit.service", **words), "utf-8")
        (folder / SERVICES / "Containerfile").write_text(template("Containerfile", **words), "utf-8")

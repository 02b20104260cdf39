"""A site's process loads what it uses; what it does not use is still there for whoever asks."""

import json
import subprocess
import sys
from pathlib import Path

SITE = """
import json, sys
from pathlib import Path
from tacit.cli.deploy import site_command
from tacit.errors import BadInput
try:
    site_command(Path(sys.argv[1]))
except BadInput:
    pass
import tacit.federation.flower.executor
print(json.dumps(sorted(sys.modules)))
"""
LATER = """
from tacit.federation.operate.lean import be_lean
be_lean()
import dp_accounting, fastapi
from dp_accounting import GaussianDpEvent, rdp
from tacit.privacy.accounting.price import epsilon
mine = epsilon(((GaussianDpEvent(1.0), 1),), delta=1e-5)
exact = dp_accounting.get_epsilon_gaussian(1.0, 1e-5)
assert abs(mine - exact) < 1e-3 * exact, (mine, exact)
accountant = dp_accounting.pld.PLDAccountant().compose(GaussianDpEvent(1.0))
assert abs(accountant.get_epsilon(1e-5) - exact) < 1e-2 * exact
assert fastapi.FastAPI().routes
assert isinstance(GaussianDpEvent(1.0), dp_accounting.dp_event.DpEvent)
assert not hasattr(fastapi, "no_such_name") and not hasattr(dp_accounting, "no_such_name")
"""


def test_a_site_does_not_hold_the_parts_of_packages_that_it_never_uses(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SITE, str(tmp_path)], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    unused = {"scipy.stats", "scipy.signal", "scipy.optimize", "dp_accounting.pld", "fastapi.applications"}
    assert {"torch", "dp_accounting", "dp_accounting.rdp", "fastapi"} <= loaded
    assert not unused & loaded
    assert not [name for name in loaded if name.startswith("tacit.personal")], "who answers has no code for own models"


def test_what_a_lean_process_left_out_is_there_when_it_is_asked_for() -> None:
    subprocess.run([sys.executable, "-c", LATER], check=True)

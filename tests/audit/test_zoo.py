"""The bug zoo: every known bug is found in every trainer that can have it, and the clean code is not accused.

Noise is keyed by the code, so that it is another with every change: clean code is judged at a level that it passes always, and
bugs must be found at that level too.
"""

import pytest
from audit.conftest import parts_of

from tacit.lab.audit.bugs import BUGS as ALL_BUGS
from tacit.lab.audit.mechanism import audit
from tacit.lab.audit.trainers import TRAINERS

DOUBT = 1e-6  # of a false alarm in one audit
EVERY = ("noise=0.95", "reuse", "clip", "layer")
BUGS = {
    "record": (*EVERY, "sampling", "divisor"),
    "client": EVERY,
    "central": (*EVERY, "sampling", "divisor", "weights"),
    "cyclic": (*EVERY, "sampling", "divisor", "weights"),
    "distributed": (*EVERY, "weights", "share"),
    "central-records": (*EVERY, "sampling", "divisor"),
    "secret-records": (*EVERY, "sampling", "divisor", "share"),
}
AT_SERVER = ("noise=0.95", "reuse", "layer", "sampling")
SERVER = {  # bugs that the server has, whoever trains
    "central": AT_SERVER,
    "cyclic": AT_SERVER,
    "central-records": ("noise=0.95", "reuse", "layer"),
}
UNFIT = {("secret-records", "site")}  # under masks no site's report can be looked at alone
ZOO = [
    (kind, trainer, bug)
    for kind, bugs in BUGS.items()
    for trainer in TRAINERS
    for bug in (None, *(bugs if trainer != "side by side" else ("reuse", bugs[-1])))  # forks of one by one
    if (kind, trainer) not in UNFIT and (trainer == "one by one" or bug not in SERVER.get(kind, ()))
]


@pytest.mark.usefixtures("quick_keys")
@pytest.mark.parametrize(("kind", "trainer", "bug"), ZOO)
def test_a_bug_is_found_and_clean_code_is_not_accused(kind, trainer, bug):
    found = audit(parts_of(kind), plant=bug, trainers=[trainer], level=DOUBT)
    places = {one.check.where for one in found.rejected}
    due = set() if bug is None else {"server" if bug in SERVER.get(kind, ()) else trainer}
    assert due <= places, found.sentence
    assert bug is not None or not places, found.sentence


def test_the_zoo_has_every_bug():
    assert {bug for bugs in BUGS.values() for bug in bugs} == set(ALL_BUGS)

"""What the fault tests of encrypted sums share."""

import sqlite3

ENCRYPTED = {
    "train": {"local_steps": 20},
    "privacy": {"kind": "distributed", "epsilon": 50.0, "noise_multiplier": None, "fewest_reports": 2, "colluding": 0},
    "protect": {"kind": "paillier", "key": {"bits": 2048}},
}


def openings(running):
    """The sums that each round's openers have in their books."""
    found = {}
    for name in running.names:
        for path in running.federation.site(name).glob("openings-*.db"):
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30) as book:
                rows = book.execute(
                    "SELECT round, sha256, clients FROM openings WHERE run LIKE ?", (f"{running.run()}%",)
                )
                for round, digest, clients in rows:
                    found.setdefault((path.name, round), set()).add((digest, clients))
    return found


def never_opened_twice(running):
    """Every round whose model moved was opened, as one sum of enough reports."""
    found = openings(running)
    assert all(len(sums) == 1 for sums in found.values()), found
    assert all(clients >= 2 for sums in found.values() for _, clients in sums)
    enough = {record["round"] for record in running.rounds() if record["answered"] >= 2}
    assert {round for _, round in found} >= enough

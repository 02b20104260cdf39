"""Persons as the unit, against whoever moves them, and whatever else is done to their rows between runs."""

import pytest

import tacit
from tacit.errors import LedgerError

HEAD = "who,place,age,ill"


def visits(place, *, persons=8, year=0):
    """Two visits of each person of a place, other ones in every year."""
    each = (
        (k, 0.1 * k + 0.01 * visit + year + 0.005 * (place == "west")) for k in range(persons) for visit in range(2)
    )
    return [f"{place}-{k},{place},{age:.3f},{k % 2}" for k, age in each]


def run(folder, name, lines, **privacy):
    path = folder / "rows.csv"
    path.write_text("\n".join([HEAD, *lines]) + "\n")
    data = {"name": "csv", "path": str(path), "label": "ill", "classes": ["0", "1"], "client_column": "place"}
    data |= {"person": "who", "numeric": {"age": [0, 10]}, "test_share": 0, "partition": "natural"}
    said = {"kind": "local", "unit": "person", "epsilon": 4.0, "delta": 1e-3, "noise_multiplier": 4.0}
    said |= {"ledger": str(folder / "shared.db"), "delta_share": 0.2} | privacy
    train = {"rounds": 1, "local_steps": 2, "sampling_rate": 0.3}
    asked = tacit.Experiment(data=data, train=train, privacy=said, run={"workers": 1})
    return tacit.run(asked, out=folder / name, page=False)


def test_a_person_who_moves_to_another_client_with_new_rows_is_refused(tmp_path):
    first = [*visits("east"), *visits("west")]
    run(tmp_path, "one", first)
    later = [*visits("east", year=1), *visits("west", year=1)]  # a year later: no row is the same, all persons are
    assert run(tmp_path, "two", later).summary["rounds"] == 1
    newest = [*visits("east", year=2), *visits("west", year=2)]
    moved = [line.replace("east-0,east", "east-0,west") for line in newest]
    with pytest.raises(
        LedgerError, match="a person of client east is now with client west, so it would have the charges"
    ):
        run(tmp_path, "three", moved)
    gone = [line for line in newest if not line.startswith("east-0,")]
    assert run(tmp_path, "four", gone).summary["rounds"] == 1
    with pytest.raises(LedgerError, match="a person of client east is now with client west"):
        run(tmp_path, "five", moved)
    assert run(tmp_path, "six", newest).summary["rounds"] == 1  # back where the person was


def test_persons_come_and_go_with_their_client_and_other_units_do_not_know_them(tmp_path):
    run(tmp_path, "one", [*visits("east"), *visits("west")], unit="record")
    assert run(tmp_path, "two", [*visits("east", persons=9), *visits("west", persons=7)]).summary["rounds"] == 1
    assert run(tmp_path, "three", [*visits("east", persons=7), *visits("west", persons=9)]).summary["rounds"] == 1

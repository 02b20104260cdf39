"""Several runs, and clients of any name, on one ledger."""

import multiprocessing

import numpy as np
import pytest
from redteam.careless_researcher import Researcher, natural_rows

from tacit.errors import BadData
from tacit.privacy.ledger import witness

WRITERS, TIMES = 4, 150


@pytest.fixture
def researcher(tmp_path, monkeypatch):
    return Researcher(tmp_path, monkeypatch)


def wrote_all(path, found):
    try:
        for number in range(TIMES):
            witness.write(path, number, str(number))
            known = witness.read(path)
            assert known is not None
            assert known[0] >= number
        found.put("all")
    except Exception as error:  # noqa: BLE001 - whatever it was, the test shows it
        found.put(repr(error))


def test_runs_that_charge_one_ledger_at_once_do_not_break_or_set_back_its_mark(tmp_path):
    """Two of them wrote into one new file: the mark could not be read, and who came second heard that nothing was charged."""
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    writers = [context.Process(target=wrote_all, args=(tmp_path / "shared.mark", found)) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    assert [found.get() for _ in writers] == ["all"] * WRITERS
    for writer in writers:
        writer.join()
    assert witness.read(tmp_path / "shared.mark") == (TIMES - 1, str(TIMES - 1))


@pytest.mark.parametrize("name", ["", "every client"])
def test_a_client_whose_name_means_everybody_or_the_test_rows_is_refused(researcher, name):
    """Rows of a client without a name could become test rows, and its releases were never counted against its budget."""
    place = researcher.place / "rows.npz"
    arrays = natural_rows(place)
    np.savez(place, **arrays | {"client": np.array([name] * len(arrays["y"]))})
    data = {"name": "npz", "path": str(place), "partition": "natural", "classes": 2, "examples_per_client": None}
    with pytest.raises(BadData, match="name of its own"):
        researcher.run("one", data=data | {"clients": 20}, model={"name": "mlp"}, privacy=researcher.shared())
    assert not (researcher.place / "shared.db").exists()

"""The page of a run that goes on, and of one that is stopped or killed."""

import pytest
from report.test_page import data_of
from report_runs import changed
from trained import Stop

import tacit
from tacit.report import live


def test_a_run_has_a_page_while_it_goes_on_so_one_that_is_killed_has_one_too(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(live, "SHARE", 0)
    page, seen = tmp_path / "run" / "report.html", []

    def observe(record):
        if page.exists():
            seen.append(data_of(page.read_text("utf-8")))

    tacit.run(changed(), out=tmp_path / "run", observe=observe)
    assert [(one["done"], one["finished"]) for one in seen] == [(n, False) for n in range(6)]
    assert all(one["made"].endswith(" UTC") for one in seen)
    ended = data_of(page.read_text("utf-8"))
    assert (ended["done"], ended["finished"], ended["made"]) == (6, True, None)


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
def test_a_run_that_is_stopped_leaves_a_page_however_short_it_was(tmp_path, error):
    def observe(record):
        raise error

    with pytest.raises(error):
        tacit.run(changed(), out=tmp_path / "run", observe=observe)
    data = data_of((tmp_path / "run" / "report.html").read_text("utf-8"))
    assert (data["done"], data["finished"]) == (1, False)
    assert data["sentence"].startswith("So far: ")


@pytest.mark.parametrize("error", [OSError("no space left"), KeyError("damaged"), RecursionError("deep")])
def test_a_page_that_cannot_be_made_costs_no_run(tmp_path, monkeypatch, error):
    monkeypatch.setattr(live, "FIRST_SECONDS", 0.0)

    def broken(*args, **options):
        raise error

    monkeypatch.setattr(live, "write_page", broken)
    assert tacit.run(changed(), out=tmp_path / "run").summary["rounds"] == 6


def test_a_run_without_a_page_has_none_in_between_either(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "FIRST_SECONDS", 0.0)
    tacit.run(changed(), out=tmp_path / "run", page=False)
    assert not (tmp_path / "run" / "report.html").exists()

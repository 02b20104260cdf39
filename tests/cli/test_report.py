"""`tacit report` as a person types it."""

import shutil

import pytest
import ready


@pytest.fixture
def command(tmp_path):
    """Runs `tacit report ...` in an empty folder."""
    return lambda *words: ready.tacit("report", *words, cwd=tmp_path).wait()


def test_a_page_is_made_again_in_its_folder_or_where_it_is_wanted(command, ended, tmp_path):
    shutil.copytree(ended, tmp_path / "mine")
    (tmp_path / "mine" / "report.html").unlink()
    assert command("mine").stdout.strip() == "Report: mine/report.html"
    assert (tmp_path / "mine" / "report.html").read_text() == (ended / "report.html").read_text().replace(
        '"folder":"run"', '"folder":"mine"'
    )
    assert command("mine", "--out", "page.html").returncode == 0
    assert (tmp_path / "page.html").is_file()


def test_several_runs_become_one_page_here(command, ended, tmp_path):
    shutil.copytree(ended, tmp_path / "other")
    done = command(ended, "other")
    assert done.returncode == 0, done.stderr
    assert '"kind":"several"' in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "There is no folder nowhere."),
        (["."], "holds no run and no comparison"),
        (["--live", "--out", "a.html", "nowhere"], "--live serves the page and writes no file"),
        (["--port", "8000", "nowhere"], "--port is for --live"),
        ([], "Missing argument 'DIR...'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_2(command, words, sentence):
    done = command(*words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_file_that_cannot_be_written_is_said(command, ended):
    done = command(ended, "--out", "no/such/place.html")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr

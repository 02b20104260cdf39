"""`tacit keys` as a person types it."""

import json
import stat

import pytest
import ready
from terminal import refused


@pytest.fixture
def command(tmp_path):
    return lambda *words: ready.tacit("keys", *words, cwd=tmp_path).wait(240)


def test_keys_are_made_shown_and_split(command, tmp_path):
    made = command("here", "--new", "safe-prime", "--bits", "2048", "--json")
    assert made.returncode == 0, made.stderr
    facts = json.loads(made.stdout)
    assert (facts["bits"], facts["shape"], len(facts["id"])) == (2048, "safe-prime", 32)
    secret = tmp_path / "here" / "secret.json"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    shown = command("here/secret.json")
    assert facts["id"] in shown.stdout
    record = json.loads(secret.read_text())
    split = command("here/secret.json", "--split", "2/3", "--out", "shares")
    assert split.returncode == 0, split.stderr
    assert "destroy here/secret.json" in split.stdout
    share = command("shares/share-2.json")
    assert "share 2" in share.stdout
    assert "2 of 3" in share.stdout
    said = made.stdout + shown.stdout + split.stdout + share.stdout
    assert not any(text in said for text in (record["p"], record["q"]))
    assert json.loads((tmp_path / "shares" / "share-2.json").read_text())["share"] not in said


def test_clients_get_signing_keys(command, tmp_path):
    made = command("members", "--client", "north")
    assert made.returncode == 0, made.stderr
    assert stat.S_IMODE((tmp_path / "members" / "north.signing.json").stat().st_mode) == 0o600
    ids = [json.loads(command(f"members/north.{kind}.json", "--json").stdout)["id"] for kind in ("signing", "member")]
    assert ids[0] == ids[1]
    assert ids[0] in made.stdout


def test_bad_input_is_one_sentence(command, tmp_path):
    (tmp_path / "file").touch()
    assert (
        refused(command("file", "--new", "ordinary")) == "file is a file: name the folder that the key files go into."
    )
    assert "Did you mean '--out'?" in refused(command("k", "--outt", "k"))
    threshold = refused(command("k", "--threshold", "2"))
    assert threshold.startswith("There is no option --threshold: the command is `tacit keys [OPTIONS] PATH`"), threshold
    assert "--set" not in threshold
    assert "use one of them" in refused(command("k", "--new", "ordinary", "--client", "north"))
    assert "add --new SHAPE" in refused(command("k", "--bits", "2048"))
    assert "add --split T/N" in refused(command("k", "--out", "s"))
    assert "such as 2/3" in refused(command("k", "--split", "2", "--out", "s"))
    assert "--split needs --out DIR" in refused(command("k", "--split", "2/3"))
    assert "2048, 3072, 4096" in refused(command("k", "--new", "ordinary", "--bits", "1024"))
    assert "Did you mean 'short-exponent'?" in refused(command("k", "--new", "short"))
    assert not (tmp_path / "k").exists()
    made = command("k", "--new", "ordinary", "--bits", "2048")
    assert made.returncode == 0, made.stderr
    assert "exists" in refused(command("k", "--new", "ordinary", "--bits", "2048"))
    assert "shape safe-prime" in refused(command("k/secret.json", "--split", "2/3", "--out", "s"))
    assert "more than half" in refused(command("k/secret.json", "--split", "1/3", "--out", "s"))
    (tmp_path / "k" / "secret.json").chmod(0o644)
    assert "can be read by others" in refused(command("k/secret.json"))
    assert "is missing" in refused(command("nowhere.json"))
    assert "name" in refused(command("m", "--client", "../x"))
    assert "does not hold a secret key" in refused(command("k/public.json", "--split", "2/3", "--out", "s"))

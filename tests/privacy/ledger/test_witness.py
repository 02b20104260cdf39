"""The mark beside a ledger, which says how far it has come."""

import json
import os
from pathlib import Path

from tacit.privacy.ledger import reader


def test_a_mark_is_on_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    """A power cut after the renaming would leave an empty mark, and nothing would run on the ledger any more."""
    mark, order = tmp_path / "ledger.mark", []
    flush, rename = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: (order.append("disk"), flush(number)))
    monkeypatch.setattr(Path, "replace", lambda self, to: (order.append("name"), rename(self, to)))
    reader.write(mark, 3, "link")
    assert order == ["disk", "name"]
    assert json.loads(mark.read_text()) == {"batch": 3, "chain": "link"}


def test_a_mark_never_goes_back(tmp_path):
    mark = tmp_path / "ledger.mark"
    reader.write(mark, 3, "later")
    reader.write(mark, 2, "earlier")
    assert reader.read(mark) == (3, "later")

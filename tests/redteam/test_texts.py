"""Texts of a few kilobytes that ask for hours or gigabytes."""

import tracemalloc

import pytest

from tacit import wire
from tacit.errors import BadInput, Refused

DEEP = 20_000  # 65,536 fit into an experiment's text: at this depth a chain takes half a minute and two gigabytes
CHAINS = {
    "bare": ".".join(["a"] * DEEP) + " = 1",
    "spaced": " . ".join(["a"] * DEEP) + " = 1",
    "quoted": ".".join(['"a"'] * DEEP) + " = 1",
    "literal": " .".join(["'='"] * DEEP) + " = 1",
    "mixed": ".".join(["a", '"b.\\""', "'c'"] * (DEEP // 3)) + " = 1",
    "header": "[" + ".".join(["a"] * DEEP) + "]",
    "inline": "x = {" + ".".join(["a"] * DEEP) + " = 1}",
    "after a text": 's = "it\'s" # "\n' + ".".join(["a"] * DEEP) + " = 1",
    "after long texts": 's = {a = """\\"b"""", b = \'\'\'c\'\'\'\', ' + ".".join(["a"] * DEEP) + " = 1}",
}
HARD = {  # for whoever looks for texts and keys by going back
    "one word": "a" * (1 << 20),
    "open texts": '"""\\"""' * (1 << 17),
    "escapes": '"' + '\\"' * (1 << 19 - 1),
    "a last escape": '"""\\' * (1 << 17),
    "quotes": "'\n" * (1 << 18),
}


@pytest.mark.parametrize("form", HARD)
def test_looking_for_long_keys_is_linear_itself(form):
    """Quadratic, each of these would take minutes."""
    with pytest.raises(BadInput):
        wire.toml_table(HARD[form])


@pytest.mark.parametrize("form", CHAINS)
def test_a_key_of_many_parts_is_refused_before_it_fills_the_memory(form):
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match="parts"):
            wire.toml_table(CHAINS[form])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 << 20


def test_a_greeting_with_a_key_of_many_parts_does_not_hold_up_a_site(server):
    asking = server()
    with pytest.raises(Refused, match="parts"):
        asking.ask(kind="hello", experiment=CHAINS["bare"])


def test_honest_texts_have_short_keys():
    numbers = ", ".join(["0.5"] * 10_000)
    text = f'[privacy]\nepsilon = [{numbers}]\nname = "{"a." * 100}"\n[accept.settings]\n"train.rounds" = 3\n'
    assert len(wire.toml_table(text)["privacy"]["epsilon"]) == 10_000

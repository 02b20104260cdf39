"""Keys that somebody made to be broken, or put where they do not belong: each is refused in one sentence."""

import json
import shutil
from dataclasses import replace

import gmpy2
import pytest
from engine.conftest import SMALL
from federation.flower.conftest import THREE, Federation
from gmpy2 import mpz

import tacit
from tacit.crypto import keys, paillier
from tacit.crypto import keys as files
from tacit.crypto.keys import generate
from tacit.crypto.paillier import PublicKey, SecretKey
from tacit.crypto.threshold import deal
from tacit.deploy.operate.inspect import own_keys
from tacit.deploy.site.keys import FOLDER, load_keys
from tacit.errors import KeyRefused

HALF = 256
KEY = generate(bits=2 * HALF, least_bits=2 * HALF)


def public(n, h_s=None, shape="ordinary"):
    return PublicKey(mpz(n), shape, h_s, 2 * HALF)


def after(number):
    """The next prime that is 3 modulo 4."""
    number = gmpy2.next_prime(number)
    while number % 4 != 3:
        number = gmpy2.next_prime(number)
    return number


def residue(n):
    """An h_s of the right form."""
    return gmpy2.powmod(-gmpy2.powmod(12345, 2, n) % n, n, n * n)


def pair(p, q):
    return SecretKey(public(p * q, residue(p * q)), p, q)


P, Q = KEY.p, KEY.q


@pytest.mark.parametrize(("a", "b"), [(1, 1), (3, 4), (5, 7)])
def test_a_key_whose_primes_are_close_or_in_a_simple_ratio_is_refused_before_anybody_knows_them(a, b):
    p = after(mpz(31) << (HALF - 5))
    with pytest.raises(KeyRefused, match="close to each other"):
        public(p * after(p * a // b + 2**100))


def test_primes_that_only_their_holder_can_see_to_be_close_are_refused_there():
    q = after(P + 2**150)
    assert public(P * q, residue(P * q))  # too far apart for a few steps from outside
    with pytest.raises(KeyRefused, match="close to each other"):
        pair(P, q)


def test_a_small_factor_is_found_in_a_public_key():
    for small in (3, 65521, 1048573):
        with pytest.raises(KeyRefused, match="factor below"):
            public(small * keys.random_prime(2 * HALF))


def test_a_third_factor_is_found_where_p_and_q_are_held():
    third = keys.random_prime(HALF // 2)
    p = third * after(P // third)
    assert p.bit_length() == HALF
    with pytest.raises(KeyRefused, match="does not belong"):
        SecretKey(public(p * Q), p, Q)


def test_primes_of_unequal_sizes_are_refused():
    for p, q in (
        (keys.random_prime(200), keys.random_prime(320)),
        (keys.random_prime(257), keys.random_prime(255)),
    ):
        with pytest.raises(KeyRefused, match=f"{p.bit_length()} and {q.bit_length()} bits"):
            SecretKey(public(p * q), p, q)


def test_primes_of_another_shape_than_claimed_are_refused():
    p = gmpy2.next_prime(P)
    while p % 4 != 1:
        p = gmpy2.next_prime(p)
    with pytest.raises(KeyRefused, match="shape"):
        public(p * Q, residue(p * Q))
    primes_ = []
    for start in (P, Q):  # nothing shows in n: they are 3 modulo 4 and 2 modulo 3, as safe primes are
        start = after(start)
        while start % 3 != 2 or gmpy2.is_prime(start >> 1):
            start = after(start)
        primes_.append(start)
    p, q = primes_
    with pytest.raises(KeyRefused, match="safe-prime"):
        SecretKey(public(p * q, residue(p * q), "safe-prime"), p, q)


def test_an_h_s_that_hides_nothing_is_refused():
    n = KEY.public.n
    for h_s in (1 + n, 1 + 5 * n, n - 1, n * n - 1, n * n - n - 1, mpz(1), mpz(0), -residue(n), P, n * n + 4):
        with pytest.raises(KeyRefused, match="h_s"):
            public(n, h_s)


def test_an_h_s_that_is_no_nth_residue_is_refused_where_p_and_q_are_held():
    n, good = KEY.public.n, KEY.public.h_s
    assert SecretKey(public(n, residue(n)), P, Q)
    for h_s in (good * (1 + n) % (n * n), mpz(4), good * gmpy2.powmod(1 + n, P, n * n) % (n * n)):
        with pytest.raises(KeyRefused, match="n-th power"):
            SecretKey(public(n, h_s), P, Q)
    half = gmpy2.powmod(good, P - 1, n * n)  # an n-th residue, but 1 modulo p
    with pytest.raises(KeyRefused, match="n-th power"):
        SecretKey(public(n, half), P, Q)


def test_a_short_key_whose_h_s_is_outside_its_secret_subgroup_is_refused():
    short = generate(bits=512, shape="short-exponent", least_bits=512)
    with pytest.raises(KeyRefused, match="n-th power"):
        replace(short, public=replace(short.public, h_s=residue(short.public.n)))


def test_verification_keys_that_are_no_units_are_refused():
    whole = deal(generate(bits=512, shape="safe-prime", least_bits=512), threshold=2, of=3)[0].verification
    n = whole.public.n
    for change in ({"v": mpz(0)}, {"v": n}, {"v": n * n}, {"keys": (mpz(1), *whole.keys[1:])}, {"v": -whole.v}):
        with pytest.raises(KeyRefused, match="verification key"):
            replace(whole, **change)


DEEP = "[" * 5000 + "]" * 5000
HUGE = files.to_text(1 << (1 << 21))
NUMBER = '"n": "AQAB"'
CRAFTED = {
    "nested lists": DEEP,
    "a nested number": f'{{"kty": "DAJ", "alg": "PAI-GN1", "n": {DEEP}}}',
    "nothing": "",
    "another kind": '{"kty": "RSA"}',
    "another algorithm": f'{{"kty": "DAJ", "alg": "x", {NUMBER}}}',
    "a list": "[1]",
    "NaN": '{"kty": "DAJ", "alg": "PAI-GN1", "n": NaN}',
    "a number of many digits": '{"kty": "DAJ", "alg": "PAI-GN1", "n": ' + "9" * 5000 + "}",
    "a number for a text": '{"kty": "DAJ", "alg": "PAI-GN1", "n": 65537}',
    "a text that is no number": '{"kty": "DAJ", "alg": "PAI-GN1", "n": "é"}',
    "two million bits": f'{{"kty": "DAJ", "alg": "PAI-GN1", "n": "{HUGE}"}}',
    "more than a megabyte": '{"kty": "' + "x" * (1 << 20) + '"}',
    "one name twice": f'{{"kty": "DAJ", "alg": "PAI-GN1", {NUMBER}, {NUMBER}}}',
    "a list under tacit": f'{{"kty": "DAJ", "alg": "PAI-GN1", {NUMBER}, "tacit": []}}',
    "not UTF-8": b"\xff\xfe",
    "a public key that is a text": '{"kty": "DAJ", "pub": "x", "p": "AQAB", "q": "AQAB"}',
}  # fmt: skip


@pytest.mark.parametrize("why", CRAFTED)
def test_a_crafted_key_file_is_refused_in_one_sentence(tmp_path, why):
    content = CRAFTED[why]
    path = tmp_path / "key.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(0o600)
    for load in (keys.load, keys.load_signer):
        with pytest.raises(KeyRefused) as caught:
            load(path)
        assert len(str(caught.value)) < 400
    shutil.copy(path, tmp_path / "a.member.json")
    with pytest.raises(KeyRefused):
        keys.load_members(tmp_path)


def test_shares_and_short_primes_of_any_size_or_kind_are_refused_without_being_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(paillier, "PublicKey", lambda *words: PublicKey(*words[:3], least_bits=512))
    share = deal(generate(bits=512, shape="safe-prime", least_bits=512), threshold=2, of=3)[0]
    keys.save_share(tmp_path / "share.json", share)
    record = json.loads((tmp_path / "share.json").read_text())
    huge = files.to_text(1 << (1 << 20))
    wrong = [{"index": one} for one in (True, 1e300, "1", 10**400)]
    wrong += [
        {"share": huge},
        {"threshold": 2.0},
        {"v": huge},
        {"keys": [huge] * 3},
        {"keys": "AQAB"},
        {"keys": [[1]] * 3},
    ]
    for change in wrong:
        files.write(tmp_path / "share.json", record | change, mode=files.SECRET, force=True)
        with pytest.raises(KeyRefused):
            keys.load_as(keys.Share, tmp_path / "share.json")
    short = generate(bits=512, shape="short-exponent", least_bits=512)
    record = keys.secret_record(short)
    for pair_ in ([huge, huge], ["", ""], [1, 2], {"0": 1}, "xy", ["AQAB"]):
        files.write(tmp_path / "s.json", record | {"tacit": {"short": pair_}}, mode=files.SECRET, force=True)
        with pytest.raises(KeyRefused):
            keys.load_as(paillier.SecretKey, tmp_path / "s.json")


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    values = SMALL | {"data": THREE["data"], "protect": {"kind": "paillier", "key": {"bits": 2048}}}
    values["privacy"] = {"kind": "distributed", "epsilon": 8.0, "clip": 0.5, "fewest_reports": 2}
    return Federation(tmp_path_factory.mktemp("federation"), tacit.Experiment(**values))


def check(deployed):
    (found,) = own_keys(deployed.site(0))
    return found


def test_a_foreign_secret_key_or_signing_key_does_not_pass_the_check(deployed):
    place, names = deployed.site(0) / FOLDER, deployed.names
    assert not check(deployed).wrong
    for file, foreign in (
        (keys.SECRET_FILE, keys.secret_record(generate(bits=2048))),
        (
            f"{names[0]}{keys.SIGNING}",
            json.loads((deployed.site(1) / FOLDER / f"{names[1]}{keys.SIGNING}").read_text()),
        ),
    ):
        for record in (foreign, foreign | {"kid": names[0]}):
            kept = (place / file).read_text()
            files.write(place / file, record, mode=files.SECRET, force=True)
            found = check(deployed)
            (place / file).write_text(kept)
            assert found.wrong
            assert "take both from one maker" in found.text
    assert not check(deployed).wrong


def test_a_member_more_or_less_than_the_run_has_sites_is_refused_at_site_and_server(deployed):
    for folder, site in ((deployed.site(0), deployed.names[0]), (deployed.folder / "server", None)):
        for sites in (deployed.names[:2], (*deployed.names, "hill"), (*deployed.names, deployed.names[1])):
            with pytest.raises(KeyRefused, match="one list of sites"):
                load_keys(folder / FOLDER, threshold=1, sites=sites, site=site)
        assert load_keys(folder / FOLDER, threshold=1, sites=deployed.names[::-1], site=site)

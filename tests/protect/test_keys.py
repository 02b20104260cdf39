"""Key files: their owner's alone, whole or not there, and readable by python-paillier."""

import json
import os
import stat
from dataclasses import replace

import phe
import phe.command_line
import pytest
from click.testing import CliRunner
from gmpy2 import mpz
from phe.util import base64_to_int, int_to_base64

from tacit.crypto import keys, paillier
from tacit.crypto.keys import generate
from tacit.crypto.paillier import PublicKey, Randomisers, SecretKey
from tacit.crypto.reports import verified
from tacit.crypto.threshold import deal
from tacit.errors import BadInput, KeyRefused


@pytest.fixture(scope="module")
def legal():
    """A key that may be used: files are not read with a tester's leniency."""
    return generate(bits=2048)


@pytest.fixture(scope="module")
def legal_short():
    return generate(bits=2048, shape="short-exponent")


def test_a_key_comes_back_from_its_files_which_are_their_owners_alone_whatever_the_umask(tmp_path, legal, legal_short):
    before = os.umask(0)
    try:
        places = [(key, *keys.save(tmp_path / key.public.shape, key)) for key in (legal, legal_short)]
    finally:
        os.umask(before)
    for key, secret, public in places:
        assert keys.load_as(paillier.SecretKey, secret) == key
        assert keys.load_as(paillier.PublicKey, public) == key.public
        assert keys.load_as(paillier.PublicKey, public).id == key.public.id
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        assert stat.S_IMODE(public.stat().st_mode) == 0o644
        assert sorted(path.name for path in secret.parent.iterdir()) == ["public.json", "secret.json"]
        assert str(key.p) not in public.read_text()
        assert int_to_base64(int(key.p)) not in public.read_text()
        with pytest.raises(KeyRefused, match="does not hold a secret key"):
            keys.load_as(paillier.SecretKey, public)


def test_a_secret_file_never_exists_with_wider_permissions(tmp_path, legal, monkeypatch):
    modes = []
    link = os.link

    def watch(source, target):
        modes.append(stat.S_IMODE(os.stat(source).st_mode))
        return link(source, target)

    opened = []
    real = os.open
    monkeypatch.setattr(
        keys.os, "open", lambda path, flags, mode=0o777: opened.append((flags, mode)) or real(path, flags, mode)
    )
    monkeypatch.setattr(keys.os, "link", watch)
    keys.write(tmp_path / "k.json", {"p": 1}, mode=keys.SECRET)
    assert modes == [0o600]
    assert opened[0][1] == 0o600
    assert opened[0][0] & os.O_EXCL


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_secret_that_others_can_read_is_refused(tmp_path, legal, mode):
    secret, _ = keys.save(tmp_path, legal)
    secret.chmod(mode)
    with pytest.raises(KeyRefused, match="can be read by others"):
        keys.load(secret)
    signer, _ = keys.save_signer(tmp_path, keys.new_signer("north"))
    signer.chmod(mode)
    with pytest.raises(KeyRefused, match="can be read by others"):
        keys.load_signer(signer)


def test_nothing_is_overwritten_unless_told(tmp_path, legal, legal_short):
    secret, _ = keys.save(tmp_path, legal)
    with pytest.raises(BadInput, match="exists"):
        keys.save(tmp_path, legal_short)
    assert keys.load_as(paillier.SecretKey, secret) == legal
    keys.save(tmp_path, legal_short, force=True)
    assert keys.load_as(paillier.SecretKey, secret) == legal_short
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_place_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / ("x" * 300), tmp_path / "file" / "k.json"):
        with pytest.raises(BadInput, match="choose another folder"):
            keys.write(place, {}, mode=keys.SECRET)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_files_that_hold_no_key_are_refused(tmp_path, legal, ordinary):
    secret = keys.secret_record(legal)
    (tmp_path / "k.json").write_text(json.dumps(secret | {"p": int_to_base64(int(legal.p) + 2)}))
    (tmp_path / "k.json").chmod(0o600)
    with pytest.raises(KeyRefused):
        keys.load(tmp_path / "k.json")
    with pytest.raises(KeyRefused, match="is missing"):
        keys.load(tmp_path / "missing.json")
    with pytest.raises(KeyRefused, match="512 bits"):
        keys.load(keys.save(tmp_path, ordinary)[1])
    for text in ("AQ!AB", "AQ\nAB", "AQ AB", "A"):  # what is no base64url is not passed over
        with pytest.raises(ValueError):
            keys.bytes_from_text(text)
    assert keys.bytes_from_text("-_8=") == keys.bytes_from_text("-_8") == b"\xfb\xff"


def test_a_server_cannot_be_given_a_secret_key_by_mistake(tmp_path, legal):
    secret, _ = keys.save(tmp_path, legal)
    with pytest.raises(KeyRefused, match="does not hold a public key"):
        keys.load_as(paillier.PublicKey, secret)


def test_shares_come_back_from_their_files(tmp_path, safe, monkeypatch):
    shares = deal(safe, threshold=2, of=3)
    *places, public = keys.save_shares(tmp_path, shares)
    assert {stat.S_IMODE(place.stat().st_mode) for place in places} == {0o600}
    monkeypatch.setattr(paillier, "PublicKey", lambda *words: PublicKey(*words[:3], least_bits=512))
    assert [keys.load_as(keys.Share, place) for place in places] == shares
    assert keys.load_as(keys.Verification, public) == shares[0].verification
    assert keys.to_text(shares[0].value) not in public.read_text()
    places[0].chmod(0o644)
    with pytest.raises(KeyRefused, match="can be read by others"):
        keys.load(places[0])


def test_python_paillier_reads_our_files_and_opens_our_ciphertexts(tmp_path, legal, legal_short):
    for key in (legal, legal_short):
        secret, public = keys.save(tmp_path / key.public.shape, key)
        record = json.loads(secret.read_text())
        theirs = phe.command_line.load_public_key(json.loads(public.read_text()))
        opener = phe.PaillierPrivateKey(theirs, base64_to_int(record["p"]), base64_to_int(record["q"]))
        messages = [0, 1, 2**2000 + 12345]
        ours = key.public.seal(messages, Randomisers(key.public, expected=10, workers=1))
        assert [opener.raw_decrypt(int(c)) for c in ours] == messages
        total = key.public.add([ours, ours])
        assert [opener.raw_decrypt(int(c)) for c in total] == [2 * m for m in messages]
    (tmp_path / "c.json").write_text(json.dumps({"v": str(ours[1]), "e": 0}))
    done = CliRunner().invoke(phe.command_line.cli, ["decrypt", str(secret), str(tmp_path / "c.json")])
    assert done.exit_code == 0, done
    assert "1" in done.output


def test_we_open_what_python_paillier_seals_with_its_own_key(tmp_path):
    public, secret = phe.generate_paillier_keypair(n_length=2048)
    record = {"kty": "DAJ", "alg": "PAI-GN1", "key_ops": ["encrypt"], "n": int_to_base64(public.n), "kid": "theirs"}
    own = {"kty": "DAJ", "key_ops": ["decrypt"], "p": int_to_base64(secret.p), "q": int_to_base64(secret.q)}
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(own | {"pub": record}))
    path.chmod(0o600)
    key = keys.load_as(paillier.SecretKey, path)
    assert isinstance(key, SecretKey)
    assert key.public.h_s is None
    messages = [0, 7, 2**2000]
    assert key.open([mpz(public.raw_encrypt(m)) for m in messages]) == messages
    ours = key.public.seal(messages, Randomisers(key.public, workers=1))
    assert [secret.raw_decrypt(int(c)) for c in ours] == messages


def test_the_key_id_covers_everything(legal, legal_short):
    other = replace(legal.public, h_s=legal.public.h_s * 4 % legal.public.n_squared)
    plain = replace(legal.public, h_s=None)
    relabelled = replace(legal_short.public, shape="ordinary")
    ids = {key.id for key in (legal.public, other, plain, legal_short.public, relabelled)}
    assert len(ids) == 5


def test_members_come_back_from_their_folder(tmp_path):
    signers = [keys.new_signer(name) for name in ("north", "coast")]
    for signer in signers:
        keys.save_signer(tmp_path, signer)
    members = keys.load_members(tmp_path)
    assert sorted(members) == ["coast", "north"]
    again = keys.load_signer(tmp_path / "north.signing.json")
    assert verified(members, "north", b"hello", again.sign(b"hello"))
    assert not verified(members, "coast", b"hello", again.sign(b"hello"))
    assert not verified(members, "north", b"hullo", again.sign(b"hello"))


def test_members_that_are_not_in_order_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no members"):
        keys.load_members(tmp_path)
    _, north = keys.save_signer(tmp_path, keys.new_signer("north"))
    (tmp_path / "coast.member.json").write_text(north.read_text())
    with pytest.raises(KeyRefused, match="names the member 'north'"):
        keys.load_members(tmp_path)
    (tmp_path / "coast.member.json").write_text(north.read_text().replace("north", "coast"))
    with pytest.raises(KeyRefused, match="one key"):
        keys.load_members(tmp_path)
    (tmp_path / "coast.member.json").write_text('{"kid": "coast"}')
    with pytest.raises(KeyRefused, match="not a member's key"):
        keys.load_members(tmp_path)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b"])
def test_a_client_has_a_name_that_is_a_file_name(name):
    with pytest.raises(BadInput, match="name"):
        keys.new_signer(name)

"""The keys of a federation: a certificate authority, the server's certificate, and one key per node.

All are ECDSA P-256: a node signs every request and shows its public key with it, and larger curves make both longer and
slower. Private keys are readable by their owner only."""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tacit.errors import BadInput

DAYS = 365
EARLIER = datetime.timedelta(minutes=5)  # clocks differ a little


def make_authority(folder: Path, *, name: str) -> None:
    """Writes `ca.crt` and `ca.key` (0600): whoever has the key can pose as the federation's server, so it is kept offline."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"Tacit federation {name}")
    builder = _certificate(subject, subject, key, DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    _write_private(folder / "ca.key", key)
    (folder / "ca.crt").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def make_server(folder: Path, *, hosts: tuple[str, ...], days: int = DAYS) -> None:
    """Writes `server.pem` and `server.key`, signed by the folder's authority, for these hosts. Raises: BadInput, OSError."""
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise BadInput(f"{folder / 'ca.key'} is not the key of this federation's authority.")

    def alternative(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    key = ec.generate_private_key(ec.SECP256R1())
    builder = _certificate(_name(hosts[0]), authority.subject, key, days)
    names = x509.SubjectAlternativeName([alternative(host) for host in hosts])
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = builder.add_extension(identifier, critical=False).sign(signer, hashes.SHA256())
    _write_private(folder / "server.key", key)
    (folder / "server.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def make_node_key(folder: Path) -> None:
    """Writes `node.key` (mode 0600) and `node.pub` in OpenSSH's formats; a key that stands is overwritten."""
    key = ec.generate_private_key(ec.SECP256R1())
    _write_private(folder / "node.key", key, serialization.PrivateFormat.OpenSSH)
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    (folder / "node.pub").write_bytes(key.public_key().public_bytes(encoding, form) + b"\n")


def days_left(path: Path) -> float:
    """How many days a certificate is still valid, negative once it has expired. Raises: BadInput for none, or not yet."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as a certificate ({error}).") from None
    now = datetime.datetime.now(datetime.UTC)
    if certificate.not_valid_before_utc > now:
        raise BadInput(
            f"{path} is valid only from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: set the clock."
        )
    return (certificate.not_valid_after_utc - now).total_seconds() / 86400


def signed_by(certificate: Path, authority: Path) -> bool:
    """Whether an authority signed a certificate; dates are not looked at. Raises: OSError or ValueError for files that are none."""
    child, parent = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (certificate, authority))
    try:
        child.verify_directly_issued_by(parent)
    except Exception:  # noqa: BLE001 - ValueError, TypeError or InvalidSignature: in every case it did not
        return False
    return True


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now - EARLIER, now + datetime.timedelta(days=days) - 2 * EARLIER))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _write_private(
    path: Path,
    key: ec.EllipticCurvePrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> None:
    content = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)

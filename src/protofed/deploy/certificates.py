"""A deployment's own certificate authority, the server's certificate, and the keys of clients.

Nothing here is downloaded or sent: all keys are made on this machine and written with mode 0600.
"""

from __future__ import annotations

import ipaddress
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from protofed.deploy.deployment import replace_file
from protofed.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName, KeyUsage

AUTHORITY_DAYS = 3650
"""The validity of the certificate authority."""
SERVER_DAYS = 397
"""The validity of the server's certificate; `protofed deploy renew` makes a new one."""
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_CLOCK_SKEW = timedelta(days=1)
"""Certificates are valid from a day before they are made, for hosts with slow clocks."""


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    replace_file(path, content, 0o600)


def write_authority(folder: Path, name: str) -> None:
    """Make a certificate authority: ca.key, which stays with the operator, and ca.pem, which everybody gets."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    key = _new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name[:40]} certificate authority")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_secret(folder / "ca.key", _private_bytes(key))
    (folder / "ca.pem").write_bytes(_pem(certificate))


def write_server_certificate(authority: Path, folder: Path, hosts: Sequence[str]) -> datetime:
    """Make server.key and server.pem for these host names and addresses. Returns the end of their validity."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    for name in ("ca.key", "ca.pem"):
        if not (authority / name).is_file():
            raise UserError(
                f"{authority / name} does not exist, and without it no certificate can be signed. "
                "Put the file back, or make a new deployment with `protofed deploy init`."
            )
    issuer_key = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), password=None)
    issuer = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
    if issuer_key.public_key() != issuer.public_key():
        raise UserError(
            f"{authority / 'ca.key'} is not the key of ca.pem, so that clients would not accept what it signs. Put the "
            "right key back, or make a new deployment with `protofed deploy init`."
        )
    key = _new_key()
    now = datetime.now(UTC)
    ends = min(now + timedelta(days=SERVER_DAYS), issuer.not_valid_after_utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(ends)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()),  # type: ignore[arg-type]
            critical=False,
        )
        .sign(issuer_key, hashes.SHA384())  # type: ignore[arg-type]
    )
    write_secret(folder / "server.key", _private_bytes(key))
    (folder / "server.pem").write_bytes(_pem(certificate))
    return ends


def certified_hosts(certificate: Path) -> list[str]:
    """The host names and addresses of a certificate."""
    from cryptography import x509

    names = _read_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [
        *names.get_values_for_type(x509.DNSName),
        *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
    ]


def valid_until(certificate: Path) -> datetime:
    """The end of the validity of a certificate."""
    return _read_certificate(certificate).not_valid_after_utc


def write_client_key(private: Path, public: Path) -> None:
    """Make a key pair for a client: the private key in PEM, the public key in the format of OpenSSH."""
    from cryptography.hazmat.primitives import serialization

    key = _new_key()
    write_secret(
        private,
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ),
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n"
    )


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _private_bytes(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _read_certificate(path: Path) -> Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as problem:
        raise UserError(f"{path} is not a certificate in PEM format: {problem}.") from problem


def _general_name(host: str) -> GeneralName:
    """A host name or an IP address, as a certificate names it."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def check_host(host: str) -> None:
    """Raise an error if this is neither a host name nor an IPv4 address: the server does not listen on IPv6."""
    try:
        is_possible = ipaddress.ip_address(host).version == 4
    except ValueError:
        is_possible = _HOST_NAME.fullmatch(host) is not None
    if not is_possible:
        raise UserError(f'--host: got "{host}"; must be a host name or an IPv4 address, without a port.')


def _key_usage(signs_certificates: bool) -> KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )

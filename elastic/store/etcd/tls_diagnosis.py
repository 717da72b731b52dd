"""Diagnosis of failed TLS connections to etcd, by a separate handshake.

gRPC's texts come from several layers, change with its versions, and do not say what is in a certificate. If a
connection fails in a way that may be due to TLS, python's ssl makes the same handshake once, and this module explains
the result.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from typing import Any, Final

from elastic._net import connected
from elastic._text import shortened, split_host_port
from elastic.errors import ConfigError
from elastic.store.auth_proxy.protocol import is_auth_proxy
from elastic.store.etcd.address import EtcdAddress
from elastic.store.http2_probe import GREETING, is_http2, read_first_bytes
from elastic.store.tls import Certificates

LIMIT_S = 1.0
"""Timeout of each connection; at most three are made."""
NAMES_MAX = 5
"""Names of a certificate that a message lists."""

_MAYBE: Final = re.compile(
    r"handshake|parsing HTTP/2|[Vv]erif|TSI_|Socket closed|securi|SSL|certificate|Connection reset|EOF|recvmsg"
)
_AUTH_PROXY: Final = (
    "it requires the job's secret, and does not use TLS; set ELASTIC_JOB_SECRET, or add --job-secret-file FILE"
)

_EXPIRED, _EARLY, _NAME, _ADDRESS = 10, 9, 62, 64
"""OpenSSL's numbers (X509_V_ERR_...) of errors in a certificate."""
_UNKNOWN: Final = frozenset({2, 18, 19, 20, 21})
_NO_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME."""


def may_be_tls_error(text: str) -> bool:
    """Return whether gRPC's text of a failed connection may come from TLS, or from its absence."""
    return _MAYBE.search(text) is not None


async def diagnose_tls(address: EtcdAddress, certificates: Certificates) -> str:
    """Return what is wrong with TLS to this server, and the fix; "" if nothing is wrong or the cause is unknown."""
    server = _ProbedServer(*split_host_port(address.target), certificates)
    try:
        return await (server.over_tls() if address.tls or certificates else server.in_plain())
    except ConfigError as error:  # A file is gone, or being written.
        return str(error)
    except OSError:
        return ""


class _ProbedServer:
    """One server, probed with as many connections as necessary."""

    def __init__(self, host: str, port: int, certificates: Certificates) -> None:
        self._host = host
        self._port = port
        self._certificates = certificates

    async def in_plain(self) -> str:
        """Find out whether the server requires TLS or a job's secret."""
        head = await read_first_bytes(self._host, self._port)
        if is_auth_proxy(head):
            return _AUTH_PROXY
        if is_http2(head):
            return ""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            await self._exchange_preface(context)
        except ssl.SSLError as error:
            if "ALERT" not in (error.reason or ""):
                return ""
        except OSError:
            return ""
        return "it requires TLS; write https:// before the server, or add --etcd-ca FILE"

    async def over_tls(self) -> str:
        """Find out what fails in the handshake, or right after it."""
        try:
            await self._exchange_preface(self._certificates.context())
        except ssl.SSLCertVerificationError as error:
            return await self._bad_certificate(error)
        except ssl.SSLError as error:
            if "ALERT" in (error.reason or ""):
                return self._refused(str(error.reason))
        except OSError:
            pass
        else:
            return ""
        head = await read_first_bytes(self._host, self._port)
        if is_auth_proxy(head):
            return _AUTH_PROXY
        if is_http2(head):
            return "it does not use TLS; write http:// before the server, and omit --etcd-ca, --etcd-cert, --etcd-key"
        return ""

    def _refused(self, alert: str) -> str:
        """Explain the alert of a server that rejects the client."""
        if not self._certificates.cert:
            return "it requires a client certificate; add --etcd-cert FILE and --etcd-key FILE"
        said = re.sub(r"^(SSLV3|TLSV1|TLSV13)_ALERT_", "", alert).replace("_", " ").lower()
        return (
            f"it rejects the certificate of --etcd-cert {self._certificates.cert} ({said}); is it signed by the "
            "authority of etcd's --trusted-ca-file, for clients (clientAuth), and not expired?"
        )

    async def _bad_certificate(self, error: ssl.SSLCertVerificationError) -> str:
        """Explain why the server's certificate is rejected."""
        code, shown = error.verify_code, await self._certificate()
        if code in (_NAME, _ADDRESS):
            return (
                f"its certificate is not for {self._host}, but for {_names(shown)}; name the server as the certificate "
                f"does, or make one with {self._host} in its subjectAltName"
            )
        if code == _EXPIRED:
            until = f" (its own ends on {shown['notAfter']})" if "notAfter" in shown else ""
            return f"its certificate, or that of its authority, has expired{until}; renew it"
        if code == _EARLY:
            since = f" (from {shown['notBefore']})" if "notBefore" in shown else ""
            return f"its certificate is not valid yet{since}; check the clocks of both hosts"
        if code in _UNKNOWN:
            known = f"--etcd-ca {self._certificates.ca}" if self._certificates.ca else "this system's list"
            hint = "name that authority's file" if self._certificates.ca else "add --etcd-ca FILE with that authority"
            return f"its certificate is signed by {_issuer(shown)} is not in {known}; {hint}"
        return f"its certificate is rejected: {error.verify_message}"

    async def _certificate(self) -> Mapping[str, Any]:
        """Return the contents of the server's certificate, regardless of its issuer and age; empty if unavailable.

        python parses only certificates that it has verified, so this one is used as its own authority.
        """
        anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
        itself = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        itself.check_hostname = False
        itself.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_TIME)
        try:
            for context in (anyone, itself):
                if self._certificates.cert:
                    context.load_cert_chain(self._certificates.cert, self._certificates.key)
            _, der = await self._handshake(anyone)
            itself.load_verify_locations(cadata=der)
            return (await self._handshake(itself))[0]
        except (OSError, ValueError):
            return {}

    async def _handshake(self, context: ssl.SSLContext) -> tuple[Mapping[str, Any], bytes]:
        async with asyncio.timeout(LIMIT_S):
            _, writer = await connected(self._host, self._port, context)
        found: ssl.SSLObject = writer.get_extra_info("ssl_object")
        writer.transport.abort()
        return found.getpeercert() or {}, found.getpeercert(binary_form=True) or b""

    async def _exchange_preface(self, context: ssl.SSLContext) -> None:
        """Send the HTTP/2 preface over TLS; a server that requires a client certificate sends its alert only then."""
        async with asyncio.timeout(LIMIT_S):
            reader, writer = await connected(self._host, self._port, context)
            try:
                writer.write(GREETING)
                await reader.read(1)
            finally:
                writer.transport.abort()


def _names(certificate: Mapping[str, Any]) -> str:
    found = [str(name) for _, name in certificate.get("subjectAltName", ())]
    if not found:
        return "no host (it has no subjectAltName)"
    return shortened(found, NAMES_MAX)


def _issuer(certificate: Mapping[str, Any]) -> str:
    parts = {name: text for part in certificate.get("issuer", ()) for name, text in part}
    name = parts.get("commonName") or parts.get("organizationName")
    return f'"{name}", which' if name else "an authority that"

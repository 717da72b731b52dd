"""The address of a provider's metadata server: the one that all three share, or that of a variable (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from elastic.errors import ConfigError

SHARED: Final = "169.254.169.254"
"""Link-local, the same with all three: no route leads away from the machine."""
ENDPOINT: Final = "ELASTIC_SPOT_ENDPOINT"
AWS: Final = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
GCP: Final = "GCE_METADATA_HOST"
PROVIDERS: Final = ("aws", "gcp", "azure")


class MetadataEndpoint(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Write it as in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 else f"{host}:{self.port}"


def endpoint(provider: str, environ: Mapping[str, str]) -> MetadataEndpoint:
    """Return the metadata server of a provider. Raises `ConfigError` for a variable with an invalid address."""
    own = {"aws": AWS, "gcp": GCP}.get(provider, "")
    for name in (ENDPOINT, own):
        text = environ.get(name, "").strip() if name else ""
        if text:
            return _parsed(name, text)
    return MetadataEndpoint(SHARED, 80)


def _parsed(name: str, text: str) -> MetadataEndpoint:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname or "", parts.port or 80
        host.encode("idna")  # As when the name is resolved: no part is empty or above 63 characters.
        if parts.scheme != "http" or not host or not host.isascii() or any(map(str.isspace, host)):
            raise ValueError("no http, or no host")
    except ValueError as error:  # UnicodeError is one.
        hint = "write http://HOST[:PORT], or unset it"
        raise ConfigError(f"{name}={text!r} is not the URL of a metadata server; {hint}") from error
    return MetadataEndpoint(host, port)

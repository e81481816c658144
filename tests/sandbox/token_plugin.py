"""A credential plugin whose tokens are good for seconds only: signs one, as a cluster's own token request would.

    python token_plugin.py FILE

FILE is JSON with ``key`` (of the cluster's service accounts), ``claims``, ``lifetime`` in seconds and ``runs``, a file
to which a line is added for each run. API servers issue no tokens for less than ten minutes, and take one for a minute
longer than it says, so this one says that it ended before: it is refused once ``lifetime`` seconds are over.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

LEEWAY = 60


def token(given: dict[str, Any], now: float) -> str:
    """Return a token that an API server takes for ``lifetime`` seconds."""
    key = load_pem_private_key(Path(given["key"]).read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    ends = int(now + given["lifetime"] - LEEWAY)
    claims = given["claims"] | {"exp": ends, "iat": ends - 600, "nbf": ends - 600}
    signed = f"{_part({'alg': 'ES256'})}.{_part(claims)}"
    halves = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(SHA256())))
    return f"{signed}.{_base64(b''.join(half.to_bytes(32, 'big') for half in halves))}"


def _part(content: dict[str, Any]) -> str:
    return _base64(json.dumps(content).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    now = time.time()
    with Path(given["runs"]).open("a") as runs:
        runs.write(f"{now}\n")
    status = {
        "token": token(given, now),
        "expirationTimestamp": datetime.fromtimestamp(now + given["lifetime"], UTC).isoformat(),
    }
    print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))

"""When credentials end, as far as they say it themselves, and when to load them anew."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Iterable

__all__ = ["end_of_certificate", "end_of_token", "renew_at"]

FILE_TOKEN_REREAD = 60.0


def end_of_token(authorization: str | None) -> float | None:
    """Return the epoch seconds at which a token ends that says so itself, as those of service accounts do."""
    parts = (authorization or "").removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        ends = float(claims["exp"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return ends if math.isfinite(ends) else None


def end_of_certificate(certificate: bytes) -> float | None:
    """Return the epoch seconds until which a PEM certificate is good; None where it can't be read."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()
    except ValueError:
        return None


def renew_at(ends: Iterable[float], *, reread: bool) -> float | None:
    """Return when to load again: after 4/5 of what is left of the credentials' life, at most a minute early.

    ``reread`` credentials are replaced by others at any time, so they are loaded again after a minute at the latest.
    """
    now = time.time()
    times = [end - min(60.0, max(0.0, end - now) / 5) for end in ends]
    if reread:
        times.append(now + FILE_TOKEN_REREAD)
    return min(times, default=None)

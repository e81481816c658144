"""Quantities in the form in which Kubernetes writes them, so that the same amount is the same text. Pure."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

__all__ = ["canonical"]

_FORM: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_DECIMAL: Final = ("m", "", "k", "M", "G", "T", "P", "E")
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def canonical(text: str) -> str:
    """Return the amount with the largest suffix that leaves a whole number, such as ``1M`` for ``1000000``.

    What is not of a known form is returned as it is: the server says what is wrong with it.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        return text
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _BINARY[1:]:
        return _shortest(number * 1024 ** _BINARY.index(suffix), 1024, _BINARY)
    return _shortest(number * 1000 ** _DECIMAL.index(suffix), 1000, _DECIMAL)


def _shortest(amount: Decimal, base: int, suffixes: tuple[str, ...]) -> str:
    """Return ``amount`` of the smallest unit in the largest one that divides it."""
    amount = amount.to_integral_value(rounding="ROUND_CEILING")
    index = 0
    while index + 1 < len(suffixes) and amount and amount % base == 0:
        amount, index = amount / base, index + 1
    return f"{amount:f}{suffixes[index]}" if amount else "0"

"""Links from a task to what it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_multikueue._compat import BaseOperatorLink

__all__ = ["LINKS"]

LINKS: tuple[BaseOperatorLink, ...] = ()

"""YAML that others wrote, such as kubeconfigs: plain values of bounded size, whatever its aliases make of it."""

from __future__ import annotations

from typing import Any, Final

import yaml

__all__ = ["plain_yaml"]

MAX_CHARACTERS: Final = 4 * 1024 * 1024
MAX_DEPTH: Final = 50
MAX_NODES: Final = 200_000
"""After aliases are expanded."""


class _Loader(yaml.SafeLoader):
    """Bounded in depth, so that nothing that walks the values runs out of stack."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.YAMLError("it is nested too deeply")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def plain_yaml(text: str) -> object:
    """Return the value of the one document in ``text``.

    Raises ValueError, with a text that quotes nothing, for what is no YAML, has tags of other types than plain ones, or
    would be too large.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError("it is too large")
    try:
        return _value(text)
    except _TooMuchError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"it is no valid YAML (line {mark.line + 1})" if mark else "it is no valid YAML") from None


class _TooMuchError(ValueError):
    """YAML in order, whose values would be too many."""


def _value(text: str) -> object:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _size(node, {}, set())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _size(node: Any, known: dict[int, int], around: set[int]) -> int:
    """Return how many values a node stands for; ValueError for too many, and for one that contains itself."""
    if id(node) in around:
        raise _TooMuchError("it contains itself")
    if id(node) not in known:
        around.add(id(node))
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        children = [each for part in parts for each in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_size(child, known, around) for child in children)
        around.discard(id(node))
        if known[id(node)] > MAX_NODES:
            raise _TooMuchError("its aliases make too much of it")
    return known[id(node)]

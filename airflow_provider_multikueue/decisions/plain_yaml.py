"""YAML that others wrote, such as kubeconfigs and manifests: of bounded size, whatever its aliases make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

__all__ = ["BoundedLoader", "EndlessError", "TooDeepError", "TooManyError", "check_size", "children", "plain_yaml"]

MAX_CHARACTERS: Final = 4 * 1024 * 1024
MAX_DEPTH: Final = 50
MAX_NODES: Final = 200_000
"""After aliases are expanded."""


class TooDeepError(yaml.YAMLError):
    """YAML that is nested deeper than its loader allows."""


class EndlessError(ValueError):
    """YAML with a ``node`` that contains itself, by an alias."""

    def __init__(self, node: Any) -> None:
        super().__init__("it contains itself")
        self.node = node


class TooManyError(ValueError):
    """YAML in order, whose aliases stand for too many values."""


class _Bounded(Composer):
    """Composes nodes, bounded in depth, so that nothing that walks the values runs out of stack."""

    most_levels: ClassVar[int] = MAX_DEPTH
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node and what is in it."""
        self.depth += 1
        if self.depth > self.most_levels:
            raise TooDeepError("it is nested too deeply")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class BoundedLoader(_Bounded, yaml.SafeLoader):
    """Bounded in depth; raises TooDeepError."""


def _fast_loader() -> Any:
    """Return a loader of the same rules that reads with libyaml, where PyYAML was built with it.

    Not CSafeLoader: it composes nodes in C as well, where a deep text runs out of stack, which ends the process.
    """
    try:
        from yaml._yaml import CParser
    except ImportError:
        return BoundedLoader

    class FastLoader(_Bounded, CParser, SafeConstructor, Resolver):
        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            for part in (Composer, SafeConstructor, Resolver):
                part.__init__(self)

    return FastLoader


_PlainLoader = _fast_loader()


def plain_yaml(text: str) -> object:
    """Return the value of the one document in ``text``.

    Raises ValueError, with a text that quotes nothing, for what is no YAML, has tags of other types than plain ones, or
    would be too large.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError("it is too large")
    try:
        return _value(text)
    except EndlessError:
        raise
    except TooManyError:
        raise ValueError("its aliases make too much of it") from None
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"it is no valid YAML (line {mark.line + 1})" if mark else "it is no valid YAML") from None


def _value(text: str) -> object:
    loader = _PlainLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        check_size(node, most=MAX_NODES)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def check_size(root: Any, *, most: int, check: Callable[[Any], None] = lambda _: None) -> None:
    """Call ``check`` with each node of a document once, and count what they stand for with aliases expanded.

    Raises EndlessError for a node that contains itself, TooManyError for more than ``most`` values.
    """
    sizes: dict[int, int] = {}
    around: set[int] = set()

    def size(node: Any) -> int:
        if id(node) in around:
            raise EndlessError(node)
        if id(node) in sizes:
            return sizes[id(node)]
        check(node)
        around.add(id(node))
        total = 1
        for child in children(node):
            total += size(child)
            if total > most:
                raise TooManyError
        around.discard(id(node))
        sizes[id(node)] = total
        return total

    size(root)


def children(node: Any) -> list[Any]:
    """Return the nodes directly in a node, a mapping's keys included."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []

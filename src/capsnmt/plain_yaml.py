"""YAML of plain values: nothing in it can run, and what it asks for is bounded by its size."""

from __future__ import annotations

from typing import Any

import yaml

_MOST_YAML_DEPTH = 16
_LONGEST_INTEGER = 40  # characters


def parse_yaml(text: str) -> Any:
    """The values of a text; ValueError says what is wrong with it."""
    try:
        return yaml.load(text, _PlainLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


class _PlainLoader(yaml.SafeLoader):
    """YAML without what no recipe needs: anchors and aliases (which make bombs), tags, great depth, repeated keys."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _at(event, "anchors and aliases are not read: write the value itself")
        if event.tag is not None:
            raise _at(event, f"the tag {event.tag!r} is not read: write the plain value")
        self._depth += 1
        if self._depth > _MOST_YAML_DEPTH:
            raise _at(event, f"deeper than {_MOST_YAML_DEPTH} levels")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def compose_scalar_node(self, anchor: dict[Any, yaml.Node]) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if node.tag == "tag:yaml.org,2002:int" and len(node.value) > _LONGEST_INTEGER:
            raise _at(node, f"a whole number of {len(node.value)} characters")
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise _at(key, f"the key {key.value!r} stands here for the second time: keep one of them")
            seen.add(key.value)
        return node


def _at(place: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)

# SPDX-License-Identifier: Apache-2.0
"""Reads JSON objects into attrs classes strictly: every error names the place and the fault.

cattrs handles the classes. It has two gaps: it accepts ``"7"`` for 7 and a text for a list of
letters, and its errors name Python's types. Here every value must have the type of its
notation, numbers have bounds, and an error reads "host one: devices
0000:40:00.0: free is -1; it must be 0 to 1000000". Each document decides whether keys may be
missing or unknown.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

import attrs
import cattrs
from cattrs import cols, gen

from nova_hpc_common.wire.version import WireDocument, WireError, show_json_value

#: Reads one value, or raises :class:`WrongError`; cattrs also passes the type.
Hook = Callable[[Any, Any], Any]

_Class = TypeVar("_Class")

#: Keys for the name of an object in a list; the first one that it has counts.
_NAMES: Final = ("name", "host", "address")
#: The longest name that is shown, in characters.
_LONGEST_NAME: Final = 255


class WrongError(WireError):
    """A field of a document has a wrong value. The text continues the field's name: "is 7, not a
    text".
    """


def number_field(least: int = 0, most: int = 1_000_000) -> tuple[type, Hook]:
    """Return a type and a reader for a whole number from *least* to *most*; which else raises."""

    def read(value: Any, _: Any) -> int:
        # True is a number in Python, but not here.
        if type(value) is not int:
            raise WrongError(f"is {show_json_value(value)}, not a whole number")
        if not least <= value <= most:
            raise WrongError(f"is {show_json_value(value)}; it must be {least} to {most}")
        return value

    return int, read


def _any_text(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        raise WrongError(f"is {show_json_value(value)}, not a text")
    return value


#: Any text from users.
ANY_TEXT: Final = (str, _any_text)


def _printable_text(value: Any, kind: Any) -> str:
    return "" if value == "" else _structure_text(value, kind)


#: A text that may be empty.
PRINTABLE: Final = (str, _printable_text)


def _structure_truth(value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        raise WrongError(f"is {show_json_value(value)}, not true or false")
    return value


def _structure_text(value: Any, kind: Any) -> str:
    if isinstance(value, str) and value and value.isprintable():
        return value  # nearly all are
    if not _any_text(value, kind):
        raise WrongError(f"is {show_json_value(value)}, not a text")
    # A user's terminal might show it.
    raise WrongError(f"is {show_json_value(value)}, which cannot be printed")


def make_strict_converter(
    fields: Mapping[str, tuple[type, Hook]],
    omit: Mapping[type, Collection[str]] | None = None,
    *,
    defaults: bool | Collection[type] = False,
    growing: bool = False,
) -> cattrs.Converter:
    """Make a converter for documents whose fields have the names of the classes' fields.

    :param fields: name of a field, in any class -> reader for its numbers or texts;
        other numbers are 0 to 1000000, other texts printable and not empty.
    :param omit: class -> its fields that are in no document.
    :param defaults: whether a key may be missing if its field has a default, in all classes or
        in the listed ones.
    :param growing: unknown keys are ignored if True, otherwise refused.
    """
    strict_converter = cattrs.Converter(forbid_extra_keys=not growing)
    left_out: dict[type, dict[str, Any]] = {
        kind: {name: gen.override(omit=True) for name in names}
        for kind, names in (omit or {}).items()
    }
    # Created on demand, because hooks for parts of such a class may come later.
    strict_converter.register_unstructure_hook_factory(
        lambda kind: isinstance(kind, type) and kind in left_out,
        lambda kind: gen.make_dict_unstructure_fn(kind, strict_converter, **left_out[kind]),
    )
    strict_converter.register_structure_hook(*number_field())
    strict_converter.register_structure_hook(bool, _structure_truth)
    strict_converter.register_structure_hook(str, _structure_text)
    for matches, factory in (
        (_is_tuple, _make_items_factory(tuple)),
        (cols.is_frozenset, _make_items_factory(frozenset)),
        (cols.is_mapping, _make_mapping_hook),
        (attrs.has, _make_class_factory(fields, left_out, defaults)),
        (_is_optional, _make_optional_hook),
    ):
        strict_converter.register_structure_hook_factory(matches, factory)
    strict_converter.register_unstructure_hook_func(cols.is_frozenset, sorted)
    return strict_converter


def _is_tuple(kind: Any) -> bool:
    return getattr(kind, "__origin__", None) is tuple and kind.__args__[1:] == (...,)


def _is_optional(kind: Any) -> bool:
    return isinstance(kind, types.UnionType) and kind.__args__[1:] == (types.NoneType,)


def _make_optional_hook(kind: Any, made: cattrs.Converter) -> Hook:
    """Make the reader of a value that may be None, with one lookup of the inner reader.

    cattrs makes a lookup for each value.
    """
    inner = kind.__args__[0]
    read = made.get_structure_hook(inner)
    return lambda value, _: None if value is None else read(value, inner)


def _make_items_factory(collect: Callable[[list[Any]], Any]) -> Any:
    """Return a factory of readers that convert a list to a tuple or a set.

    Items are read without a record of their places, because that is faster. If one of them is
    wrong, cattrs reads the list again, and its error names the place of the item.
    """

    def factory(kind: Any, made: cattrs.Converter) -> Hook:
        of = kind.__args__[0]
        read = made.get_structure_hook(of)
        explained = cols.list_structure_factory(kind, made)

        def hook(value: Any, _: Any) -> Any:
            if not isinstance(value, list):
                raise WrongError(f"is {show_json_value(value)}, not a list")
            try:
                return collect([read(item, of) for item in value])
            except (WireError, cattrs.BaseValidationError):
                return explained(value, kind)  # raises, with the place

        return hook

    return factory


def _make_mapping_hook(kind: Any, made: cattrs.Converter) -> Hook:
    read = cols.mapping_structure_factory(kind, made)

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, dict):
            raise WrongError(f"is {show_json_value(value)}, not an object")
        return read(value, kind)

    return hook


def _make_class_factory(
    fields: Mapping[str, tuple[Any, Hook]],
    left_out: Mapping[type, Mapping[str, Any]],
    defaults: bool | Collection[type],
) -> Any:
    """Return a factory of readers that convert an object to a class, with readers of single fields.

    A missing key is reported before cattrs reads the object, so that the message names it in our
    words.
    """

    def factory(kind: Any, made: cattrs.Converter) -> Hook:
        attrs.resolve_types(kind)
        overrides = {**left_out.get(kind, {})}
        lenient = defaults if isinstance(defaults, bool) else kind in defaults
        names = {
            field.name
            for field in attrs.fields(kind)
            if field.name not in overrides and not (lenient and field.default is not attrs.NOTHING)
        }
        for field in attrs.fields(kind):
            if field.name in fields:
                special = made.copy()
                primitive, read_it = fields[field.name]
                if isinstance(primitive, type):
                    special.register_structure_hook(primitive, read_it)
                else:
                    special.register_structure_hook_func(partial(operator.eq, primitive), read_it)
                read_field = special.get_structure_hook(field.type)
                overrides[field.name] = gen.override(struct_hook=read_field)
        read = gen.make_dict_structure_fn(kind, made, **overrides)

        def hook(value: Any, _: Any) -> Any:
            if not isinstance(value, dict):
                raise WrongError(f"is {show_json_value(value)}, not an object")
            if not names <= value.keys():
                raise WireError(f"{min(names - value.keys())} is missing")
            return read(value, kind)

        return hook

    return factory


def read_document(
    document: WireDocument,
    text: object,
    converter: cattrs.Converter,
    kind: type[_Class],
    singular: Mapping[str, str] = MappingProxyType({}),
) -> _Class:
    """Parse the text of a document into its class.

    :raises nova_hpc_common.wire.version.LaterError: only a later release reads it.
    :raises WireError: it is broken.
    """
    data = document.load(text)
    try:
        return structure_document(converter, data, kind, singular)
    except WireError as error:
        raise document.broken(f"is wrong: {error}") from error


def structure_document(
    converter: cattrs.Converter, data: Any, kind: type[_Class], singular: Mapping[str, str]
) -> _Class:
    """Convert the parsed JSON of a document into its class.

    :param singular: name of a list -> word for one of its objects.
    :raises WireError: names the fault and its place.
    """
    try:
        return converter.structure(data, kind)
    except (cattrs.BaseValidationError, cattrs.ForbiddenExtraKeysError, WireError) as error:
        raise WireError(_explain_wire_error(error, data, singular)) from error


def _explain_wire_error(error: Exception, data: Any, singular: Mapping[str, str]) -> str:
    """Return a text with the first fault of a document and its place."""
    parts: list[str] = []
    while isinstance(error, cattrs.BaseValidationError):
        noted, others = error.group_exceptions()  # type: ignore[attr-defined]
        if not noted:
            error = others[0]
            break
        error, note = noted[0]
        key = note.name if isinstance(note, cattrs.AttributeValidationNote) else note.index
        if isinstance(data, dict) and key not in data:
            continue  # a part of the class that is not in the document
        data = data[key]
        if isinstance(key, int):
            parts[-1] = f"{singular.get(parts[-1], parts[-1])} {_item_name_of(data, key)}"
        else:
            parts.append(key if key.isprintable() and len(key) <= 60 else show_json_value(key))
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        key = min(error.extra_fields)
        parts.append(key if key.isidentifier() and len(key) <= 60 else show_json_value(key))
        names = ", ".join(field.name for field in attrs.fields(error.cl))
        return f"{': '.join(parts)} is no known field of this version; there are {names}"
    if isinstance(error, WrongError) or not isinstance(error, WireError):
        return f"{': '.join(parts)} {error}"
    return ": ".join([*parts, str(error)])


def _item_name_of(item: Any, number: int) -> str:
    names = [item[key] for key in _NAMES if key in item] if isinstance(item, dict) else []
    name = names[0] if names else None
    good = isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()
    return str(name) if good else f"number {number}"

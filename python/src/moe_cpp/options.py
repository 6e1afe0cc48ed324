"""The options of functions as keyword arguments: their names, types and defaults are the library's
own list (moe_options), which the command's --help is made of.

For type checkers options.pyi says the same; setup.py writes it when the wheel is built.
"""

from __future__ import annotations

import inspect
import keyword
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from moe_cpp._inputs import Folder
from moe_cpp._library import LIBRARY, call_for_json
from moe_cpp._option_types import FUNCTIONS, TYPES

Function = TypeVar("Function", bound=Callable[..., Any])

_TYPES: dict[str, Any] = {
    kind: eval(text, {"Any": Any, "Folder": Folder, "Mapping": Mapping, "Sequence": Sequence})
    for kind, text in TYPES.items()
}


def options_of(name: str) -> list[dict[str, Any]]:
    """Those of FUNCTIONS[name], as the library tells them (include/moe/moe.h, moe_options)."""
    function, arguments = FUNCTIONS[name]
    rows: list[dict[str, Any]] = call_for_json(LIBRARY.moe_options, function.encode())
    return [row for row in rows if row["name"] not in arguments]


def keyword_of(name: str) -> str:
    """`from` is a keyword of Python: from_."""
    return name + "_" if keyword.iskeyword(name) else name


def _shown_default(row: Mapping[str, Any]) -> object:
    default = row["default"]
    return None if default in ("", [], {}) else default


def _paragraph(row: Mapping[str, Any]) -> str:
    default = _shown_default(row)
    head = f"{keyword_of(row['name'])} : {TYPES[row['kind']].replace('Folder', 'path')}"
    if default is not None:
        head += f", default {default!r}"
    if row["unit"]:
        head += f", in {row['unit']}"
    others = [name for name in row["also"] if len(name) > 1]
    text = row["help"] + (f"; also {', '.join(others)}" if others else "")
    return head + "\n" + textwrap.indent(textwrap.fill(text, 112), "    ")


def _parameter(row: Mapping[str, Any]) -> inspect.Parameter:
    default = _shown_default(row)
    kind = TYPES[row["kind"]] + (" | None" if default is None else "")
    return inspect.Parameter(
        keyword_of(row["name"]), inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
    )


def _documented(doc: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The docstring with its options, in front of what is returned."""
    before, returns, after = doc.partition("\nReturns\n-------\n")
    lines = [before.rstrip(), "", "Options", "-------"]
    group = ""
    for row in rows:
        if row["group"] != group:
            group = row["group"]
            lines += ["", f"{group}:" if group else "Further:"]
        lines.append(_paragraph(row))
    return "\n".join(lines) + "\n" + returns + after


def takes_options(name: str) -> Callable[[Function], Function]:
    """Gives a Python function, in place of its **options, the keywords of FUNCTIONS[name]: for
    help(), signature() and completion."""
    rows = options_of(name)

    def give(wrapped: Function) -> Function:
        own = [
            p
            for p in inspect.signature(wrapped).parameters.values()
            if p.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        wrapped.__signature__ = inspect.signature(wrapped).replace(
            parameters=[*own, *map(_parameter, rows)]
        )  # type: ignore[attr-defined]
        wrapped.__doc__ = _documented(inspect.cleandoc(wrapped.__doc__ or ""), rows)
        return wrapped

    return give


def _typed(name: str) -> Any:
    rows = options_of(name)
    fields = {
        keyword_of(one): _TYPES[row["kind"]] | None
        for row in rows
        for one in [row["name"], *row["also"]]
        if len(one) > 1
    }
    return TypedDict(name, fields, total=False)  # type: ignore[operator, misc]


TrainOptions = _typed("TrainOptions")
LoadOptions = _typed("LoadOptions")
SaveOptions = _typed("SaveOptions")
GenerateOptions = _typed("GenerateOptions")
SessionOptions = _typed("SessionOptions")
ContinueOptions = _typed("ContinueOptions")
ScoreOptions = _typed("ScoreOptions")
RouteOptions = _typed("RouteOptions")

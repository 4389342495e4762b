#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records the signatures of what our integrations use of a package that cannot be installed everywhere.

    tools/record_signatures.py WHEEL FILE.json [MODULE:NAME ...]

Reads the package's sources in the wheel with `ast` (nothing of it runs) and writes facts only: parameters, defaults,
fields, members, which names a module binds, and how a function calls others that are recorded. Without names it records
those in FILE.json again, so that a new version is compared by `git diff`. A name that is not there is an error.
"""

from __future__ import annotations

import ast
import json
import pathlib
import re
import sys
import zipfile
from typing import Any


class Missing(Exception):
    pass


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Each as it is written in a call's view: "name", "name=default", "*", "*name", "**name"."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    result = [_parameter(one, default) for one, default in zip(plain, defaults, strict=True)]
    if arguments.vararg:
        result.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        result.append("*")
    result += [
        _parameter(one, default) for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return result + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    return argument.arg if default is None else f"{argument.arg}={ast.unparse(default)}"


def _own_nodes(function: ast.AST) -> list[ast.AST]:
    """What runs in the function itself, not in functions inside of it."""
    found: list[ast.AST] = []
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop(0)
        found.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)
    return found


def describe_function(function: ast.FunctionDef | ast.AsyncFunctionDef, recorded: set[str]) -> dict[str, Any]:
    nodes = _own_nodes(function)
    calls: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.removeprefix("self.") in recorded:
                given = ["?"] * len(node.args) + [f"{one.arg}=?" if one.arg else "**?" for one in node.keywords]
                calls[name] = given
    decorators = [ast.unparse(one).split("(")[0] for one in function.decorator_list]
    is_generator = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in nodes)
    return {
        "kind": "function", "parameters": parameters(function), "generator": is_generator,
        **({"decorators": decorators} if decorators else {}), **({"calls": calls} if calls else {}),
    }  # fmt: skip


def describe_class(node: ast.ClassDef) -> dict[str, Any]:
    fields, members = [], {}
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            fields.append(one.target.id if one.value is None else f"{one.target.id}={ast.unparse(one.value)}")
        elif (
            isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and isinstance(one.value, ast.Constant)
        ):
            members[one.targets[0].id] = one.value.value
    return {
        "kind": "class", "bases": [ast.unparse(base) for base in node.bases], "fields": fields, "members": members,
        "methods": [one.name for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))],
    }  # fmt: skip


def find(module: ast.Module, path: list[str]) -> ast.AST:
    body: list[ast.stmt] = module.body
    found: ast.AST | None = None
    for part in path:
        found = next((one for one in _statements(body) if part in _bound(one)), None)
        if found is None:
            raise Missing
        body = found.body if isinstance(found, ast.ClassDef) else []
    assert found is not None
    return found


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """With those inside of `if` and `try`."""
    result = []
    for one in body:
        result.append(one)
        for field in ("body", "orelse", "finalbody"):
            if isinstance(one, (ast.If, ast.Try)):
                result += _statements(getattr(one, field, []))
    return result


def _bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [one.asname or one.name for one in statement.names]
    if isinstance(statement, ast.Assign):
        return [one.id for one in statement.targets if isinstance(one, ast.Name)]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return []


def describe(node: ast.AST, recorded: set[str]) -> dict[str, Any]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return describe_function(node, recorded)
    if isinstance(node, ast.ClassDef):
        return describe_class(node)
    if isinstance(node, ast.ImportFrom):
        return {"kind": "import", "from": node.module}
    if isinstance(node, ast.Import):
        return {"kind": "import"}
    return {"kind": "variable"}


def record(wheel: pathlib.Path, names: list[str]) -> dict[str, Any]:
    package, version = re.match(r"([^-]+)-([^-]+)-", wheel.name).groups()  # type: ignore[union-attr]
    recorded = {name.partition(":")[2].split(".")[-1] for name in names}
    symbols, missing = {}, []
    with zipfile.ZipFile(wheel) as archive:
        files, trees = set(archive.namelist()), {}
        for name in sorted(names):
            module, _, path = name.partition(":")
            base = module.replace(".", "/")
            file = next((one for one in (f"{base}.py", f"{base}/__init__.py") if one in files), None)
            try:
                if file is None:
                    raise Missing
                if file not in trees:
                    trees[file] = ast.parse(archive.read(file))
                symbols[name] = describe(find(trees[file], path.split(".")), recorded)
            except Missing:
                missing.append(name)
    if missing:
        sys.exit(f"{wheel.name} has no {', '.join(missing)}")
    return {"package": package, "version": version, "symbols": symbols}


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    wheel, output, names = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    if not names:
        names = list(json.loads(output.read_text())["symbols"])
    output.write_text(json.dumps(record(wheel, names), indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Hooks of the documentation site: pages that are made from the code, and links that lead out of the docs.

The command line's page comes from typer, the JSON report's from its schema, a page for each kernel from its
docstrings, the project's from the files at the root.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
_KERNELS = ROOT / "kernels" / "hloscope_kernels"
_SCHEMA = ROOT / "hloscope" / "report" / "schema.json"
_AT_ROOT = {"ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"}
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)#:]+)(?P<anchor>#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    made = {"reference/cli.md": _cli(), "reference/json.md": _schema()} | _kernels()
    made |= {f"project/{name.lower()}": _from_root(name) for name in sorted(_AT_ROOT)}
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links to files of the repository become their names: the site has only the docs."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def kept(link: re.Match[str]) -> str:
        target = (folder / link["target"]).resolve()
        inside = target.is_relative_to(ROOT / "docs")
        return link[0] if inside or not target.exists() else f"{link['text']} (`{target.relative_to(ROOT)}`)"

    return _LINK.sub(kept, markdown)


def _cli() -> str:
    command = [sys.executable, "-m", "typer", "hloscope.cli.main", "utils", "docs", "--name", "hloscope"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text.replace("# `hloscope`", "# The command line", 1)


_ABOUT_KERNELS = """# Kernels

Made from the docstrings of `hloscope_kernels`, which a training job may import alone.
[Row kernels](../row_kernels.md) and [grouped matmuls](../ragged_dot.md) tell what was checked where.
"""


def _kernels() -> dict[str, str]:
    """A page for each folder of kernels, and one that lists them with their first lines."""
    pages: dict[str, str] = {}
    index = _ABOUT_KERNELS
    for file in sorted(_KERNELS.glob("*/__init__.py")):
        name, module = file.parent.name, ast.parse(file.read_text("utf-8"))
        options = f"{{members: [{', '.join(_public(module))}], show_root_heading: false}}"
        pages[f"reference/kernels/{name}.md"] = (
            f"# {name}\n\n::: hloscope_kernels.{name}\n    options: {options}\n"
        )
        index += f"\n- [{name}](kernels/{name}.md): {(ast.get_docstring(module) or '').partition(chr(10))[0]}"
    return pages | {"reference/kernels.md": index + "\n"}


def _public(module: ast.Module) -> Iterator[str]:
    """The functions that a module offers: its own, and what it hands on under the same name."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.asname == alias.name)


def _from_root(name: str) -> str:
    """A file of the root as a page of project/: links into docs are relative to that."""
    text = (ROOT / name).read_text("utf-8")
    return re.sub(r"\]\(docs/", "](../", text)


def _schema() -> str:
    schema = json.loads(_SCHEMA.read_text("utf-8"))
    parts = [f"# The JSON report\n\n{schema['description']}", _fields(schema)]
    for name, entry in schema["$defs"].items():
        parts.append(f"## {name}\n\n{entry.get('description', '')}")
        if "properties" in entry:
            parts.append(_fields(entry))
    return "\n\n".join(parts) + "\n"


def _fields(entry: Mapping[str, Any]) -> str:
    rows = [
        f"| `{name}` | {' or '.join(_kinds(field))} | {_cell(field.get('description', ''))} |"
        for name, field in entry["properties"].items()
    ]
    return "\n".join(["| field | type | |", "|---|---|---|", *rows])


def _kinds(field: Mapping[str, Any]) -> Iterator[str]:
    """The types that a field may have, those of the schema's own as links."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        yield f"[{name}](#{name})"
    elif alternatives := field.get("anyOf") or field.get("oneOf"):
        for alternative in alternatives:
            yield from _kinds(alternative)
    elif "enum" in field:
        yield from (f"`{json.dumps(value)}`" for value in field["enum"])
    elif "const" in field:
        yield f"`{json.dumps(field['const'])}`"
    elif field.get("type") == "array":
        yield f"list of {' or '.join(_kinds(field.get('items', {})))}"
    else:
        kinds = field.get("type", "anything")
        yield from kinds if isinstance(kinds, list) else [kinds]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

"""Hooks of the documentation site: pages that are made from the code, and links that lead out of the docs.

The command line's page comes from click, the JSON report's from its schema, the project's from the files at the root.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from hloscope.cli.commands import app

ROOT = Path(__file__).parents[1]
_SCHEMA = ROOT / "hloscope" / "report" / "schema.json"
_AT_ROOT = {"ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"}
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)#:]+)(?P<anchor>#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    made = {"reference/cli.md": _cli(), "reference/json.md": _schema()}
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
    """A section for each command: its help, and what it takes."""
    context = click.Context(app, info_name=app.name)
    parts = [f"# The command line\n\n{inspect.cleandoc(app.help or '')}", _parameters(app), app.epilog or ""]
    for name, command in app.commands.items():
        usage = " ".join(command.collect_usage_pieces(click.Context(command, parent=context)))
        parts += [f"## {name}", f"```console\n$ hloscope {name} {usage}\n```"]
        parts += [inspect.cleandoc(command.help or ""), _parameters(command)]
    return "\n\n".join(parts) + "\n"


def _parameters(command: click.Command) -> str:
    rows = [_row(p) for p in command.params if isinstance(p, click.Argument | click.Option)]
    return "\n".join(["| | |", "|---|---|", *rows]) if rows else ""


def _row(parameter: click.Argument | click.Option) -> str:
    names = ", ".join(parameter.opts) if isinstance(parameter, click.Option) else parameter.metavar
    value = f" {parameter.metavar}" if isinstance(parameter, click.Option) and parameter.metavar else ""
    told = parameter.help or ""
    if isinstance(parameter.default, str | int) and not isinstance(parameter.default, bool):
        told += f" Default: `{parameter.default}`."
    return f"| `{_cell(f'{names}{value}')}` | {_cell(told)} |"


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

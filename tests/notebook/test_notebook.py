"""The notebook in examples, run in a real kernel: what it shows, against what the command tells of the same step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"

pytestmark = [pytest.mark.tpu_compile, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Ran:
    """A notebook that was run."""

    def __init__(self, notebook: Any, folder: Path, *, allow_errors: bool = False) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAX_PLATFORMS", "cpu")
            client = NotebookClient(
                notebook,
                timeout=600,
                allow_errors=allow_errors,
                resources={"metadata": {"path": str(folder)}},
            )
            client.execute()
        self.cells = [cell for cell in notebook.cells if cell.cell_type == "code"]

    def outputs(self, start: str) -> Sequence[Any]:
        """What stands below the first cell that begins so."""
        return next(cell for cell in self.cells if cell.source.startswith(start)).outputs

    def shown(self, start: str, kind: str = "text/plain") -> str:
        """The value of a cell, in a form."""
        (result,) = (o for o in self.outputs(start) if o.output_type in ("execute_result", "display_data"))
        return result.data[kind]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    notebook = nbformat.read(EXAMPLE, as_version=4)
    notebook.cells.append(
        nbformat.v4.new_code_cell(
            "import json\nprint(json.dumps([r.to_dict() for r in (report, before, after)]))"
        )
    )
    return Ran(notebook, tmp_path_factory.mktemp("notebook"))


@pytest.fixture(scope="module")
def told(example: Ran) -> list[dict[str, Any]]:
    (printed,) = example.outputs("import json")
    return json.loads(printed.text)


def test_the_notebook_has_no_outputs_of_its_own() -> None:
    notebook = nbformat.read(EXAMPLE, as_version=4)
    nbformat.validate(notebook)
    assert [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []


def test_it_shows_what_the_command_line_tells(
    example: Ran, told: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The same step as a file, analyzed by the command."""
    by_start = {cell.source.split("\n")[0]: cell.source for cell in example.cells}
    file = tmp_path / "train.py"
    file.write_text(
        f"{by_start['import jax']}\n{by_start['LAYERS, EMBED, HIDDEN, BATCH = 4, 1024, 4096, 2048']}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "hloscope.cli.main", "analyze", str(file), "--json", "-"],
        capture_output=True, text=True, check=True, timeout=600, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    command, notebook = json.loads(done.stdout), told[0]
    for name, value in command["memory"].items():
        if name.endswith("_bytes"):
            assert notebook["memory"][name] == value, name
    assert notebook["counts"] == command["counts"]
    for table, names in (
        ("census", ("family", "phase", "shape", "count", "executions", "bytes", "seconds")),
        ("collectives", ("opcode", "shape", "mesh_axes", "executions", "bytes", "seconds")),
        ("findings", ("code", "title", "saved_bytes", "saved_seconds")),
    ):
        assert [[row[n] for n in names] for row in notebook[table]] == [
            [row[n] for n in names] for row in command[table]
        ]
    assert example.shown("report = hs.analyze").startswith("Report(jit_update, v5e:2x4, total ")
    assert command["memory"]["temp_bytes"] is not None


def test_parts_are_drawn(example: Ran, told: list[dict[str, Any]]) -> None:
    for start, inside in (
        ("report = hs.analyze", "id=&quot;overview&quot;"),
        ("report.memory", "id=&quot;curve&quot;"),
        ("report.collectives", "id=&quot;collectives&quot;"),
        ("report.findings", "id=&quot;findings&quot;"),
        ("%%hloscope", "id=&quot;overview&quot;"),
    ):
        html = example.shown(start, "text/html")
        assert html.startswith("<iframe srcdoc=")
        assert inside in html
    assert "Neighbourhood(%while" in example.shown("loop.neighbourhood")


def test_before_and_after(example: Ran, told: list[dict[str, Any]]) -> None:
    _, before, after = told
    codes = [[f["code"] for f in report["findings"]] for report in (before, after)]
    assert "HS201" in codes[0]
    assert "HS201" not in codes[1]
    assert after["memory"]["temp_bytes"] < 0.6 * before["memory"]["temp_bytes"]
    assert after["target"]["versions"] == before["target"]["versions"]
    shown = example.shown("from hloscope.plan", "text/html")
    assert shown.startswith("<iframe srcdoc=")
    assert "HS201" in shown


def test_progress_is_told_in_one_line(example: Ran) -> None:
    told = [o for o in example.outputs("report = hs.analyze") if o.output_type == "stream"]
    assert {output.name for output in told} == {"stderr"}
    text = "".join(output.text for output in told)
    assert "] compiling" in text
    assert text.endswith(f"\r{'':60}\r")


HOSTILE = """
    import jax, jax.numpy as jnp, os, signal
    import hloscope as hs
    x = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
    ---
    def dies(x):
        os.abort()
    hs.analyze(dies, x, topology="v5e:2x2")
    ---
    def killed(x):
        os.kill(os.getpid(), signal.SIGKILL)
    hs.analyze(killed, x, topology="v5e:2x2")
    ---
    hs.analyze(lambda x: x @ x.reshape(5, -1), x, topology="v5e:2x2")
    ---
    hs.analyze(lambda x: x @ x, x)
    ---
    %load_ext hloscope
    ---
    %%hloscope --topology v5e:2x2
    y = x
    ---
    import threading
    lock = threading.Lock()
    hs.analyze(lambda x: (x, lock)[0], x, topology="v5e:2x2")
    ---
    print("alive", x.shape)
"""


def test_the_kernel_outlives_what_goes_wrong_in_the_worker(tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(text.strip()) for text in dedent(HOSTILE).split("---")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    ran = Ran(notebook, tmp_path, allow_errors=True)
    errors = [(o.ename, o.evalue) for cell in ran.cells for o in cell.outputs if o.output_type == "error"]
    assert [name for name, _ in errors] == ["CompileError", "CompileError", *["UserError"] * 4]
    died, killed, wrong, nowhere, empty, closed = (text for _, text in errors)
    assert died == "the worker died of SIGABRT during trace"
    assert killed.startswith("the worker was killed (SIGKILL) during trace")
    assert wrong.startswith("TypeError: ")
    assert nowhere == "<lambda>: tell what to compile for, e.g. topology='tpu7x:4x4x4'"
    assert empty == "%%hloscope compiles the call in the cell's last line, e.g. train_step(state, batch)"
    assert closed.startswith("<lambda> holds something that cannot be sent to the compile worker (")
    assert ran.cells[-1].outputs[0].text == "alive (256, 256)\n"
    # One line each, no traceback.
    for cell in ran.cells:
        for output in cell.outputs:
            if output.output_type == "error" and output.ename == "UserError":
                assert len(output.traceback) == 1

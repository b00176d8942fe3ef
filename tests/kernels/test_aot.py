"""The row kernels through the TPU compiler: the module shows the kernel, in place, and no copies around it."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from hloscope.capture import capture_step
from hloscope.hlo import read_hlo

pytestmark = pytest.mark.tpu_compile

WORKER = Path(__file__).with_name("aot_worker.py")
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "PYTHONPATH": os.pathsep.join(sys.path),
}
TOPOLOGIES = ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"]
ROWS = 65_536 - 100
# Bytes that a program writes in the place of an operand.
IN_PLACE = {
    "glu_bwd silu bf16": ROWS * 2048 * 2,
    "glu_bwd gelu f32": ROWS * 2048 * 4,
    "unsort bf16": ROWS * 4096 * 2,
    "unsort f32": ROWS * 2048 * 4,
    "rows weigh": ROWS * 4096 * 2,
    "rows masked": ROWS * 4096 * 2,
}
_MIB = 1 << 20
_ITEM = {"bf16": 2, "f32": 4, "s32": 4, "pred": 1}


@cache
def programs(topology):
    """What the worker compiled for a topology, by name."""
    run = subprocess.run(
        [sys.executable, str(WORKER), topology],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    lines = [line.removeprefix("PROGRAM ") for line in run.stdout.splitlines() if line.startswith("PROGRAM ")]
    return {answer["name"]: answer for answer in map(json.loads, lines)}


def large_copies(hlo):
    """Copies and pads of a MiB or more, as (opcode, bytes)."""
    found = re.findall(r"= \(?(\w+)\[([\d,]*)\]\S* (copy|copy-start|pad|transpose)\(", hlo)
    sized = [
        (opcode, _ITEM[kind] * math.prod(int(size) for size in sizes.split(",") if size))
        for kind, sizes, opcode in found
    ]
    return [(opcode, size) for opcode, size in sized if size >= _MIB]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_program_is_one_kernel_within_vmem(topology):
    compiled = programs(topology)
    assert len(compiled) == 21
    for name, program in compiled.items():
        assert program["hlo"].count('custom_call_target="tpu_custom_call"') == 1, name
        scoped = re.findall(
            r'used_scoped_memory_configs":\[\{"memory_space":"1",[^}]*"size":"(\d+)"', program["hlo"]
        )
        assert max(map(int, scoped), default=0) <= program["vmem_bytes"], name


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_nothing_large_is_copied_around_a_kernel(topology):
    for name, program in programs(topology).items():
        if f"[{ROWS}," in program["hlo"]:
            assert large_copies(program["hlo"]) == [], name


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_donated_buffers_are_written_in_place(topology):
    compiled = programs(topology)
    for name, size in IN_PLACE.items():
        assert compiled[name]["alias"] >= size, name  # Rows are padded to whole tiles.
        assert compiled[name]["temp"] < _MIB, name


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_gradient_takes_the_place_of_the_buffer(topology):
    # Alive together are only the incoming gradient and the buffer, which becomes the result.
    program = programs(topology)["fused_glu"]
    assert program["temp"] < ROWS * 1024 * 2 + 2 * _MIB
    assert "may_alias" in program["hlo"] or "output_to_operand_aliasing" in program["hlo"]


@pytest.mark.parametrize("topology", ["v6e:2x2", "tpu7x:2x2x1"])
def test_kernels_take_the_layouts_that_grouped_matmuls_want(topology):
    step = Path(__file__).parents[1] / "steps" / "layer.py"
    module = read_hlo(capture_step(f"{step}:layer", topology=topology).hlo_path).module
    kernels = [i for i in module.instructions if re.search("glu_rows|unsort_bwd_rows|valid_rows", i.name)]
    kernels = [i for i in kernels if i.custom_call_target == "tpu_custom_call"]
    assert len(kernels) == 5
    tiles = {
        str(shape) for i in kernels for shape in (i.shape.tuple_shapes or (i.shape,)) if "bf16" in str(shape)
    }
    # Compiled alone, all of them are T(8,128).
    assert any("T(16,128)" in tile for tile in tiles) == topology.startswith("tpu7x")

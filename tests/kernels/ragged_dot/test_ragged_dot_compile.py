"""The TPU kernels compiled ahead of time for every chip: what the modules hold."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from hloscope_kernels.chip import tpu_chip
from hloscope_kernels.ragged_dot import explain, ragged_dot
from hloscope_kernels.ragged_dot.shapes import QWEN35_397B_WO, Shape

pytestmark = pytest.mark.tpu_compile

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

CHIPS = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
SMALL = Shape(name="small", m=2000, k=500, n=384, groups=8, valid_rows=2000)
WHOLE = PartitionSpec()
KERNELS = {"ragged_dot": 1, "ragged_dot_transposed": 1, "ragged_contraction": 1}


@contextmanager
def mesh_of(topology: str, size: int = 1) -> Iterator[Mesh]:
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[:size]
    mesh = Mesh(np.array(devices), ("x",), axis_types=(AxisType.Auto,))
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        yield mesh


def operands(mesh: Mesh, shape: Shape, dtype: Any, rows: PartitionSpec = WHOLE) -> list[Any]:
    whole = NamedSharding(mesh, WHOLE)
    return [
        jax.ShapeDtypeStruct((shape.m, shape.k), dtype, sharding=NamedSharding(mesh, rows)),
        jax.ShapeDtypeStruct((shape.groups, shape.k, shape.n), dtype, sharding=whole),
        jax.ShapeDtypeStruct((shape.groups,), jnp.int32, sharding=whole),
    ]


def value_and_gradients(product: Any, lhs: Any, rhs: Any, sizes: Any) -> Any:
    out, pull = jax.vjp(lambda x, w: product(x, w, sizes), lhs, rhs)
    return out, *pull(jnp.cos(out))


def kernels(text: str) -> dict[str, int]:
    """How many calls of each of our kernels; in a gradient jax puts `jvp` and `transpose` around the name."""
    names = re.findall(
        r"%\w*?(ragged_(?:dot_transposed|dot|contraction))_*[.\d]* = [^\n]*tpu_custom_call", text
    )
    return {name: names.count(name) for name in sorted(set(names))}


def vmem_sizes(text: str) -> list[int]:
    """VMEM that each kernel has, in bytes."""
    used = r'used_scoped_memory_configs":\[\{"memory_space":"1","offset":"\d+","size":"(\d+)"'
    return [
        int(size)
        for line in text.splitlines()
        if "tpu_custom_call" in line
        for size in re.findall(used, line)
    ]


def wide_copies(text: str, rows: int, groups: int) -> list[str]:
    """Copies of a whole operand or result, by their shapes."""
    return re.findall(rf"= (\w+\[(?:{rows}|{groups}),\d{{3}}[^\]]*\])\S* copy\(", text)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("topology", CHIPS)
def test_every_chip_compiles_all_three_kernels(topology: str, dtype: Any) -> None:
    with mesh_of(topology) as mesh:
        product = partial(ragged_dot, implementation="pallas_tpu")
        text = (
            jax.jit(partial(value_and_gradients, product))
            .lower(*operands(mesh, SMALL, dtype))
            .compile()
            .as_text()
        )
        chip = tpu_chip()
    assert chip is not None
    assert kernels(text) == KERNELS
    assert 0 < max(vmem_sizes(text)) <= chip.vmem_bytes


@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"])
def test_auto_takes_the_kernels_at_a_real_shape_without_copies(topology: str) -> None:
    shape = QWEN35_397B_WO
    with mesh_of(topology) as mesh:
        given = operands(mesh, shape, jnp.bfloat16)
        assert [line.split(": ")[1] for line in explain(*given[:2]).splitlines()] == ["pallas_tpu"] * 3
        text = jax.jit(partial(value_and_gradients, ragged_dot)).lower(*given).compile().as_text()
        chip = tpu_chip()
    assert chip is not None
    assert kernels(text) == KERNELS
    assert not wide_copies(text, shape.m, shape.groups)
    assert 0 < max(vmem_sizes(text)) <= chip.vmem_bytes


def test_what_the_choice_rests_on_still_holds_for_xla() -> None:
    """XLA copies the weights for the gradient of lhs, and zeroes dead rows in a pass of its own."""
    shape = QWEN35_397B_WO
    product = partial(ragged_dot, implementation="xla")
    with mesh_of("v6e:2x2") as mesh:
        given = operands(mesh, shape, jnp.bfloat16)
        gradients = jax.jit(partial(value_and_gradients, product)).lower(*given).compile().as_text()
        result = jax.jit(product).lower(*given).compile().as_text()
    assert wide_copies(gradients, shape.m, shape.groups) == [f"bf16[{shape.groups},{shape.k},{shape.n}]"]
    assert re.search(rf"ROOT %\S*select\S* = bf16\[{shape.m},{shape.n}\]\S* fusion\(%ragged-dot", result)


def test_off_its_sizes_auto_leaves_the_work_to_xla() -> None:
    with mesh_of("v6e:2x2") as mesh:
        text = jax.jit(ragged_dot).lower(*operands(mesh, SMALL, jnp.bfloat16)).compile().as_text()
    assert not kernels(text)
    assert "ragged-dot" in text


def test_shard_map_checks_what_varies() -> None:
    with mesh_of("v6e:2x2", 4) as mesh:
        rows, whole = PartitionSpec("x"), WHOLE
        product = jax.shard_map(
            partial(ragged_dot, implementation="pallas_tpu"),
            mesh=mesh,
            in_specs=(rows, whole, whole),
            out_specs=rows,
        )
        given = operands(mesh, SMALL, jnp.bfloat16, rows)
        text = jax.jit(partial(value_and_gradients, product)).lower(*given).compile().as_text()
    assert kernels(text) == KERNELS
    assert "all-reduce" in text  # the weights' gradient, over the rows of every device

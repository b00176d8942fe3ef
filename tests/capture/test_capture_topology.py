"""Topologies through libtpu and on the host; each in a process of its own, since jax starts once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

from hloscope.capture.launch import worker_environment

SCRIPT = """
import json, sys
from hloscope.capture import Topology
from hloscope.errors import UserError

def answer(expression):
    try:
        return eval(expression)
    except UserError as error:
        return f"UserError: {error}"

print(json.dumps([answer(line) for line in json.load(sys.stdin)]))
"""


def ask(*expressions: str) -> list[Any]:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(expressions),
        capture_output=True,
        text=True,
        check=True,
        env=worker_environment(os.environ),
    )
    return json.loads(result.stdout)


TAKEN = {
    "v2:2x2": (8, "TPU v2"),
    "v3:2x2": (8, "TPU v3"),
    "v4:2x2x1": (4, "TPU v4"),
    "v4:4x4x8_untwisted": (128, "TPU v4"),
    "v5e:1x1": (1, "TPU v5 lite"),
    "v5e:2x1": (2, "TPU v5 lite"),
    "v5e:2x4": (8, "TPU v5 lite"),
    "v5e_2x4": (8, "TPU v5 lite"),
    "v5 lite:2x4": (8, "TPU v5 lite"),
    "v5p:1x1x1": (1, "TPU v5"),
    "v5p:8x8x8": (512, "TPU v5"),
    "v6e:16x16": (256, "TPU v6 lite"),
    "tpu7x:1x1x1": (2, "TPU7x"),
    "tpu7x:2x2": (8, "TPU7x"),
    "TPU7x:2x2x1": (8, "TPU7x"),
    "tpu7x:4x4x4": (128, "TPU7x"),
}


def test_every_name_that_libtpu_takes_is_taken() -> None:
    answers = ask(*(f"[Topology({n!r}).num_devices, Topology({n!r}).devices[0].device_kind]" for n in TAKEN))
    assert {name: tuple(answer) for name, answer in zip(TAKEN, answers, strict=True)} == TAKEN


def test_names_that_libtpu_refuses_end_in_one_line() -> None:
    names = ["v5e:3x5", "v5e:0x4", "v7x:2x2x1", "v5litepod-8", "h100:8", "v5e:"]
    answers = ask(*(f"Topology({name!r}).num_devices" for name in names))
    for name, answer in zip(names, answers, strict=True):
        assert answer.startswith("UserError: "), answer
        assert repr(name) in answer
        assert "\n" not in answer


def test_meshes_hold_every_device_once() -> None:
    meshes = [
        ("tpu7x:4x4x4", {"fsdp": 16, "expert": 8}),
        ("v4:4x4x4", {"fsdp": 16, "expert": 4}),
        ("v5p:4x4x4", {"fsdp": 2, "expert": 32}),
        ("v6e:16x16", {"fsdp": 32, "expert": 8}),
    ]
    answers = ask(
        *(f"[d.id for d in Topology({name!r}).mesh(**{axes}).devices.flat]" for name, axes in meshes)
    )
    for answer in answers:
        assert sorted(answer) == list(range(len(answer)))


def test_a_mesh_over_one_axis_is_a_walk_through_neighbours() -> None:
    (walk,) = ask("[[d.coords for d in Topology('v6e:4x4').mesh(data=16).devices.flat]][0]")
    steps = [sum(abs(a - b) for a, b in zip(here, there, strict=True)) for here, there in pairwise(walk)]
    assert steps == [1] * 15


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ("data=3", "v5e:2x4: the mesh data=3 has 3 places, but the topology has 8 devices"),
        ("a=2, b=8", "v5e:2x4: the mesh a=2 x b=8 has 16 places, but the topology has 8 devices"),
        ("", "v5e:2x4: a mesh needs axes, e.g. topology.mesh(data=8)"),
        ("a=-1, b=-8", "v5e:2x4: axis sizes must be positive whole numbers, got a=-1 x b=-8"),
        ("a=8.0", "v5e:2x4: axis sizes must be positive whole numbers, got a=8.0"),
    ],
)
def test_meshes_that_do_not_fit(mesh: str, said: str) -> None:
    assert ask(f"Topology('v5e:2x4').mesh({mesh})") == [f"UserError: {said}"]


def test_host_devices() -> None:
    fewer, mesh, more = ask(
        "Topology('cpu:8').num_devices",
        "dict(Topology('cpu:4').mesh(a=2, b=2).shape)",
        "Topology('cpu:16').num_devices",
    )
    assert fewer == 8
    assert mesh == {"a": 2, "b": 2}
    assert more.startswith("UserError: cpu:16: jax has started with 8 host device(s) already")

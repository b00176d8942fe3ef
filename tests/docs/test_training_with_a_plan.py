"""The trainer of the guide runs as it stands, with its plan and without, to the same losses in every bit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "training_with_a_plan.md"
BLOCK = re.compile(r'```\w+ title="([^"]+)"\n(.*?)```', re.DOTALL)
COMMAND = re.compile(r"^\$ export (.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide's files in a folder of their own."""
    place = tmp_path_factory.mktemp("guide")
    for name, text in BLOCK.findall(GUIDE.read_text("utf-8")):
        (place / name).write_text(text)
    return place


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in that folder, under the variables that the guide exports."""
    (exported,) = COMMAND.findall(GUIDE.read_text("utf-8"))
    variables = dict(each.split("=", 1) for each in exported.split())
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **variables, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_the_losses_are_the_same_in_every_bit(folder: Path) -> None:
    plain, planned = run(folder, "train.py"), run(folder, "train.py", "plan.toml")
    assert (plain.returncode, planned.returncode) == (0, 0), plain.stderr + planned.stderr
    losses = re.findall(r"^step \d: loss \S+ = (\S+)$", planned.stdout, re.MULTILINE)
    assert len(losses) == 5
    assert len(set(losses)) == 5, "it trains"
    assert [float.fromhex(x) for x in losses] == sorted(map(float.fromhex, losses), reverse=True)
    assert planned.stdout == plain.stdout


def test_a_plan_for_other_code_ends_in_the_line_that_the_guide_shows(folder: Path) -> None:
    stale = (folder / "plan.toml").read_text().replace("['up']", "['wide']")
    (folder / "stale.toml").write_text(stale)
    done = run(folder, "train.py", "stale.toml")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("hloscope.errors.UserError: the plan no longer fits: ")
    assert last in GUIDE.read_text("utf-8").splitlines()


# Every kind of action in one plan; what the guide says of donation, of shardings and of sizes.
SEVERAL_STEPS = """
import dataclasses, jax, numpy as np, model, hloscope as hs
from hloscope.plan import BeforeLoop, MoveAxis, Plan
from hloscope.rewrite.early import early_work
from hloscope.rewrite.rows import BITWISE_OPTIONS
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
plain = model.build(mesh, model.SMALL)
(early,) = early_work(plain)
large = early.key.replace("f32[256,32]", "f32[32768,2048]")
assert large != early.key
loops = Plan(actions=(BeforeLoop(work=(large,)), *Plan.load("plan.toml").actions))
try:
    hs.apply(plain, loops)
except hs.UserError as error:
    assert "the plan no longer fits" in str(error), error
else:
    raise AssertionError("the plan is for another size")
planned = hs.apply(plain, loops, any_size=True)
assert planned.donate_argnums == plain.donate_argnums
assert planned.out_shardings == plain.out_shardings
assert planned.args == plain.args

def placed(values, like):
    return jax.device_put(values, jax.tree.map(lambda leaf: leaf.sharding, like))

def start(step):
    keys = iter(jax.random.split(jax.random.key(0), 99))
    state = jax.tree.map(lambda leaf: 0.3 * jax.random.normal(next(keys), leaf.shape), step.args[0])
    return placed(state, step.args[0]), placed(np.arange(8 * 17).reshape(8, 17) % 256, step.args[1])

def train(step):
    step = dataclasses.replace(step, compiler_options=BITWISE_OPTIONS)
    run, losses = step.jit(), []
    state, tokens = start(step)
    for _ in range(4):
        old = jax.tree.leaves(state)
        state, loss = run(state, tokens)
        losses.append(float(loss))
        assert all(leaf.is_deleted() for leaf in old), "donated"
        laid = jax.tree.map(lambda leaf, like: leaf.sharding.is_equivalent_to(like.sharding, leaf.ndim),
                            state, step.args[0])
        assert all(jax.tree.leaves(laid))
    assert run._cache_size() == 1, "compiled once"
    return losses, [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]

expected, values = train(plain)
assert train(planned) == (expected, values)

move = MoveAxis(parameter="state['params']['head']", shape=(32, 256), axes=("fsdp",), source=0, target=1)
moved = hs.apply(plain, Plan(actions=(move,)))
assert moved.args[0]["params"]["head"].sharding.spec == P(None, "fsdp")
assert moved.args[0]["mean"]["head"].sharding.spec == P(None, "fsdp")
np.testing.assert_allclose(train(moved)[0], expected, rtol=1e-4)
# What lies as before is taken by jax.jit, and refused by the program that was lowered for the step's arguments.
state, tokens = start(plain)
moved.jit()(*start(plain))
compiled = moved.jit().lower(*moved.args).compile()
compiled(*start(moved))
try:
    compiled(state, tokens)
except ValueError as error:
    assert "sharding" in str(error).lower(), error
else:
    raise AssertionError("the state lies as before")
print("done")
"""


def test_steps_in_a_row_with_donated_state_and_every_kind_of_action(folder: Path) -> None:
    done = run(folder, "-c", SEVERAL_STEPS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"

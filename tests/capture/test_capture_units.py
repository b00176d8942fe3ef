"""The parts of capture that need neither jax nor a compiler."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.capture import Step, Topology, dump, lowering, messages
from hloscope.capture.launch import death, split_target, worker_environment
from hloscope.capture.step import step, step_spec
from hloscope.capture.topology_names import chip_of, refusal, suggest, zero_sized
from hloscope.errors import UserError


def identity(x: object) -> object:
    return x


# Step


def test_decorator_leaves_the_function_callable() -> None:
    @step(topology="v5e:2x4", name="small")
    def builder(topology: Topology) -> Step:
        return Step(identity, args=(topology,))

    spec = step_spec(builder)
    assert spec is not None
    assert (spec.name, spec.topology) == ("small", "v5e:2x4")
    assert builder(Topology("v5e:2x4")).args == (Topology("v5e:2x4"),)


def test_decorator_without_parentheses() -> None:
    @step
    def builder(topology: Topology) -> Step:
        return Step(identity)

    spec = step_spec(builder)
    assert spec is not None
    assert (spec.name, spec.topology) == ("builder", None)
    assert step_spec(identity) is None
    assert step_spec(3) is None


def test_argument_numbers_are_normalized() -> None:
    assert Step(identity, args=(1, 2), donate_argnums=-1).donate_argnums == (1,)
    assert Step(identity, args=(1, 2), static_argnums=[1, 0]).static_argnums == (0, 1)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"args": {"w": 1}}, "args must be a tuple with one entry per argument, got dict"),
        ({"kwargs": (1,)}, "kwargs must be a mapping, got tuple"),
        ({"args": (1,), "donate_argnums": "0"}, "donate_argnums must be positions of arguments, got '0'"),
        ({"args": (1,), "donate_argnums": 1}, "donate_argnums names argument 1, but args has 1"),
        ({"args": (1,), "donate_argnums": 0, "static_argnums": 0}, "argument 0 cannot be both"),
        ({"compiler_options": ["xla"]}, "compiler_options must be a mapping, got list"),
        ({"compiler_options": {"xla_x": None}}, "compiler option 'xla_x' must be a bool, number or string"),
        ({"compiler_options": {"xla_dump_to": "x"}}, "compiler option xla_dump_to is hloscope's own"),
        ({"valid_fraction": 0}, "valid_fraction must be above 0 and at most 1, got 0"),
        ({"valid_fraction": 1.5}, "valid_fraction must be above 0 and at most 1, got 1.5"),
        ({"valid_fraction": True}, "valid_fraction must be above 0 and at most 1, got True"),
    ],
)
def test_step_refuses_what_cannot_be_right(fields: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        Step(identity, **fields)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"Step: {said}")


def test_step_refuses_a_second_donation_for_a_jitted_function() -> None:
    class Jitted:
        def __call__(self) -> None: ...
        def lower(self) -> None: ...

    with pytest.raises(
        UserError, match=r"fn is a jax\.jit function already; give donate_argnums to jax\.jit"
    ):
        Step(Jitted(), args=(1,), donate_argnums=0)
    assert Step(Jitted(), args=(1,)).is_jitted
    with pytest.raises(UserError, match="fn must be a function, got int"):
        Step(3)  # type: ignore[arg-type]


# Topology names


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("v7x:4x4x4", "tpu7x:4x4x4"),
        ("ironwood:2x2x1", "tpu7x:2x2x1"),
        ("v5litepod-8", "v5e:2x4"),
        ("v5litepod-256", "v5e:16x16"),
        ("v6e-16", "v6e:4x4"),
        ("v6e-8", "v6e:2x4"),
        ("v5p-8", "v5p:2x2x1"),
        ("v5p-128", "v5p:4x4x4"),
        ("v4-16", "v4:2x2x2"),
        ("tpu7x-8", "tpu7x:2x2x1"),
        ("trillium:4x4", "v6e:4x4"),
        ("v5litepod:2x4", "v5e:2x4"),
        ("v4:4x4x8-twisted", "v4:2x2x1"),
        ("v5e", "v5e:2x4"),
        ("v5e-7", "v5e:2x4"),
        ("v5e:2x", "v5e:2x4"),
        ("v5e:3x5", None),
        ("V5E:3x5", None),
        ("h100:8", None),
        ("", None),
    ],
)
def test_suggested_spelling(name: str, meant: str | None) -> None:
    assert suggest(name) == meant


@given(st.text(alphabet="v5e67px:-_=x0123 tup", max_size=20))
def test_any_name_gets_an_answer(name: str) -> None:
    assert suggest(name) != name
    chip_of(name)
    zero_sized(name)


def test_chip_of_other_spellings() -> None:
    names = ["v5:2x2x1", "TPU7x:2x2x1", "v5 lite:2x4", "tpu v5e:2x4", "v6e=2x2", "cpu:8"]
    assert [Topology(name).chip for name in names] == ["v5p", "tpu7x", "v5e", "v5e", "v6e", "cpu"]


@pytest.mark.parametrize("name", ["", "  ", "cpu:", "cpu:0", "cpu:x"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(UserError):
        Topology(name)


# Messages

LOG = """\
Failed to find host bounds for accelerator type: WARNING: could not determine TPU accelerator type, please set
WARNING: Logging before InitGoogle() is written to STDERR
E0000 00:00:1795967577.513931   3578 common_lib.cc:860] INVALID_ARGUMENT: unexpected worker hostname 'x'
=== Source Location Trace: ===
learning/45eac/tfrc/runtime/libtpu_init_utils.cc:370
W1129 15:57:22.516995 4965 tpu_version_flag.cc:87] No hardware is found. Using default TPU version: jellyfish
W1129 15:57:23.924995    5131 llo_module.h:502] The log function has NOT been set for the LloModule.
loss is 3.5, WARNING is a word in what the user prints
W1129 15:57:22.542416    5030 spmd_partitioner.cc:666] [SPMD] Involuntary full rematerialization. From here
W1129 15:57:22.642416    5031 spmd_partitioner.cc:666] [SPMD] Involuntary full rematerialization. From here
E1129 15:57:23.642416    5031 some_new_pass.cc:1] never seen before
WARNING:2026-11-29 15:57:22,516:jax._src.mesh:12: something of jax's
I1129 15:57:23.642416    5031 some_new_pass.cc:1] chatter
W1129 15:57:23.742416    5031 thread.cc:1929] --- Memory map: ---
W1129 15:57:24.891360    2207 llo_loop.cc:101] [copy.388] 0-iteration loop inserted, start=0, step=1, limit=0
W1129 15:57:24.891360    2207 lowering_emitter.cc:7]   mul.1 = f32[8]{0} multiply(param_0.1, param_1.2)
E1129 15:57:25.896574    1957 slow_operation_alarm.cc:74]
"""


def test_known_noise_is_dropped_and_the_rest_kept_once() -> None:
    assert messages.compiler_warnings(LOG) == [
        "spmd_partitioner.cc: [SPMD] Involuntary full rematerialization. From here",
        "some_new_pass.cc: never seen before",
        "jax._src.mesh:12: something of jax's",
    ]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("Ran out of memory in memory space hbm. Used 1.16T of 15.75G hbm. Exceeded", ("1.16T", "15.75G")),
        (
            "the total memory required for HLO temporaries (19.03G) exceeds available HBM (15.75G).",
            ("19.03G", "15.75G"),
        ),
        ("Used 3 of 4 eggs", None),
    ],
)
def test_sizes_of_out_of_memory(text: str, sizes: tuple[str, str] | None) -> None:
    assert messages.out_of_memory("", text) == sizes


def test_sizes_in_bytes_and_words() -> None:
    assert messages.to_bytes("15.75G") == 16911433728
    assert messages.to_bytes("512") == 512
    assert messages.to_bytes("1.5K") == 1536
    assert messages.in_words("15.75G") == "15.75 GiB"


def test_log_tail_leaves_the_noise_out() -> None:
    assert messages.tail(LOG, lines=2).splitlines()[-1].endswith("some_new_pass.cc:1] chatter")
    assert "jellyfish" not in messages.tail(LOG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A lowered step in jax's form, with a frame of hloscope's and one of the user's."""

    own: int
    theirs: int
    file: str = lowering.__file__

    def as_text(self, *, debug_info: bool) -> str:
        assert debug_info
        frames = (f'"{self.file}":{self.own}:19 to :27', f'"/home/me/train.py":{self.theirs}:8 to 9:12')
        return "".join(f"#loc{i} = loc({frame})\n" for i, frame in enumerate(frames))


def test_lines_of_hloscopes_own_tell_no_steps_apart() -> None:
    assert lowering.text_of(Lowered(own=49, theirs=7)) == lowering.text_of(Lowered(own=1234, theirs=7))
    assert lowering.text_of(Lowered(own=49, theirs=7)) != lowering.text_of(Lowered(own=49, theirs=8))
    elsewhere = Lowered(own=49, theirs=7, file="/home/me/hloscope/mine.py")
    assert ":49:19" in lowering.text_of(elsewhere)


# Dumps


def test_collect_takes_the_largest_module(tmp_path: Path) -> None:
    dumped, folder = tmp_path / "dump", tmp_path / "artifact"
    dumped.mkdir()
    folder.mkdir()
    stem = "module_0003.jit_step.with.dots.cl_12345"
    (dumped / "module_0001.jit_helper.cl_12345.after_optimizations.hlo.pb").write_bytes(b"x")
    (dumped / f"{stem}.after_optimizations.hlo.pb").write_bytes(b"large")
    (dumped / f"{stem}.after_optimizations_before_buffer_assignment.hlo.pb").write_bytes(b"larger still")
    (dumped / f"{stem}.tpu_comp_env.txt").write_text(
        "xla_a: 1\n"
        "# xla_b in the current tpu_comp_env has a non-default value. Default flag value: true\n"
        "xla_b: false\n"
        "# xla_c in the current tpu_comp_env has a non-default value. Default flag value: \n"
        "xla_c {\n  value: 3\n}\n"
        "xla_d: 4\n"
    )
    files = dump.collect(dumped, folder)
    assert files is not None
    assert files.module_name == "jit_step.with.dots"
    assert files.hlo_path.read_bytes() == b"large"
    assert (files.schedule_path, files.before_hlo_path) == (None, None)
    assert files.changed_flags == {"xla_b": "false", "xla_c": "{ value: 3 }"}


def test_a_flag_without_a_value_is_an_empty_one() -> None:
    line = "# xla_a in the current tpu_comp_env has a non-default value.\nxla_a: \n"
    assert dump.changed_flags(line) == {"xla_a": ""}


def test_collect_of_an_empty_dump(tmp_path: Path) -> None:
    assert dump.collect(tmp_path, tmp_path) is None
    assert dump.collect(tmp_path / "none", tmp_path) is None


def test_user_flags_prefer_what_the_compiler_recorded() -> None:
    flags = dump.user_flags({"xla_b": "32768"}, {"xla_b": 0, "xla_c": True}, "--xla_d=1 --xla_e", "")
    assert flags == {"xla_b": "32768", "xla_c": "true", "xla_d": "1", "xla_e": "true"}


# Launching


def test_targets(tmp_path: Path) -> None:
    path = tmp_path / "step.py"
    path.touch()
    odd = tmp_path / "odd:name.py"
    odd.touch()
    assert split_target(f"{path}") == (path, None)
    assert split_target(f"{path}:train") == (path, "train")
    assert split_target(f"{odd}") == (odd, None)
    assert split_target(f"{odd}:train") == (odd, "train")


def test_environment_of_the_worker() -> None:
    environment = worker_environment(
        {"XLA_FLAGS": "--xla_dump_to=x --xla_y=1", "PYTHONPATH": "mine", "A": "b"}
    )
    assert environment["XLA_FLAGS"] == "--xla_y=1"
    assert environment["PYTHONPATH"].startswith(f"mine{os.pathsep}")
    assert (environment["A"], environment["JAX_PLATFORMS"]) == ("b", "cpu")


def test_words_for_a_death() -> None:
    assert death(-11, "compile") == "the worker died of SIGSEGV during compile"
    assert death(7, "build") == "the worker ended with exit code 7 during build"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h100:8", "is a GPU"),
        ("gb200", "is a GPU"),
        ("nvidia h100", "is a GPU"),
        ("mi300x:8", "is a GPU"),
        ("2xv5e:4x4", "has several slices"),
        ("v5e:4x4*2", "has several slices"),
        ("v5e:4x4x2slices", "has several slices"),
        ("7x:2x2x1", "did you mean 'tpu7x:2x2x1'"),
        ("v5litepod-8", "did you mean 'v5e:2x4'"),
    ],
)
def test_what_is_not_supported_is_told_apart(name: str, said: str) -> None:
    assert said in refusal(name, "no")


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("F1 1 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_no=1\n", "--xla_no=1"),
        ("Couldn't interpret value banana for flag xla_fuel.\nusage: ...", "banana for flag xla_fuel"),
        ("all is well", None),
    ],
)
def test_flags_that_xla_refuses(log: str, said: str | None) -> None:
    found = messages.wrong_flags(log)
    assert found is None if said is None else said in (found or "")

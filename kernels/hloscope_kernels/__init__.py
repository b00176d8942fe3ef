"""Kernels for the ragged buffers of a mixture-of-experts step.

A training job can depend on this package alone: it needs only jax. Each operation is one folder, with
its plain reference, its kernels and its block sizes; off a TPU, or where a kernel cannot run, the
reference runs with the same results in the valid rows.
"""

from hloscope_kernels.glu_rows import fused_glu as fused_glu
from hloscope_kernels.glu_rows import glu_rows as glu_rows
from hloscope_kernels.glu_rows import glu_rows_bwd as glu_rows_bwd
from hloscope_kernels.ragged_dot import ragged_dot as ragged_dot
from hloscope_kernels.unsort_bwd_rows import unsort_bwd_rows as unsort_bwd_rows
from hloscope_kernels.valid_rows import valid_rows as valid_rows

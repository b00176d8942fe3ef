"""Grouped matmuls that choose their implementation well and say why.

`ragged_dot` multiplies each group of rows by a matrix of its own, as mixture-of-experts layers do; `explain`
tells which implementation runs for a shape on a device.
"""

from hloscope_kernels.ragged_dot.api import explain as explain
from hloscope_kernels.ragged_dot.api import ragged_dot as ragged_dot
from hloscope_kernels.ragged_dot.choose import unsupported as unsupported

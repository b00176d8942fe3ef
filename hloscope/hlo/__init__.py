"""The HLO model: one in-memory form of a module, whatever file it came from."""

from hloscope.hlo.alike import alike as alike
from hloscope.hlo.alike import alike_work as alike_work
from hloscope.hlo.asynchronous import AsyncOperation as AsyncOperation
from hloscope.hlo.asynchronous import async_operation as async_operation
from hloscope.hlo.asynchronous import async_operations as async_operations
from hloscope.hlo.asynchronous import is_async_part as is_async_part
from hloscope.hlo.asynchronous import is_async_start as is_async_start
from hloscope.hlo.asynchronous import start_of as start_of
from hloscope.hlo.asynchronous import work_of as work_of
from hloscope.hlo.instruction import Computation as Computation
from hloscope.hlo.instruction import Instruction as Instruction
from hloscope.hlo.memo import once_for_each as once_for_each
from hloscope.hlo.memo import once_per_module as once_per_module
from hloscope.hlo.module import Module as Module
from hloscope.hlo.reader import HloFile as HloFile
from hloscope.hlo.reader import read_hlo as read_hlo
from hloscope.hlo.replica_groups import ReplicaGroups as ReplicaGroups
from hloscope.hlo.shape import MEMORY_SPACES as MEMORY_SPACES
from hloscope.hlo.shape import Layout as Layout
from hloscope.hlo.shape import Shape as Shape
from hloscope.hlo.source import SourceFrame as SourceFrame

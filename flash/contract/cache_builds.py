"""The verified kernels other than attention: the kernel that appends new rows to a cache, and the
kernel that merges results of parts of the keys.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from flash.contract.built_kernel import BuiltKernel
from flash.kernels.append import AppendConfig, append_kernel
from flash.kernels.merge import MergeConfig, merge_kernel
from flash.operands.declared import Operand
from ptxgen import ir
from ptxgen.check.verify import require_valid
from ptxgen.runtime.attributes import LaunchAttributes

if TYPE_CHECKING:
    from flash.contract.launches import Launch


class AppendBuild(BuiltKernel):
    """A verified append kernel."""

    config: AppendConfig

    def _emitted(self) -> ir.Module:
        return append_kernel(self.config)

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """The new rows, the cache, rotary tables and queries, and the operands."""
        return (*self.config.arrays, *self.config.operands)

    @property
    def launches(self) -> Launch:
        """The declaration of the append kernel's launches."""
        from flash.contract.cache import appending

        return appending(self.config)


@lru_cache(maxsize=64)
def append_build(config: AppendConfig) -> AppendBuild:
    """The append kernel of a configuration. Raises `VerifyError` for a fault of the generator's."""
    module = append_kernel(config)
    require_valid(module)
    return AppendBuild(config, module)


class MergeBuild(BuiltKernel):
    """A verified merge kernel."""

    config: MergeConfig

    def _emitted(self) -> ir.Module:
        return merge_kernel(self.config)

    @property
    def attributes(self) -> LaunchAttributes:
        """The launch attributes: a launch may begin before the preceding grid has ended, if the kernel waits
        for it.
        """
        return LaunchAttributes(programmatic=self.config.overlaps).canonical()

    @property
    def launches(self) -> Launch:
        """The declaration of the merge kernel's launches."""
        from flash.contract.cache import merging

        return merging(self.config)


@lru_cache(maxsize=64)
def merge_build(config: MergeConfig) -> MergeBuild:
    """The merge kernel of a configuration. Raises `VerifyError` for a fault of the generator's."""
    module = merge_kernel(config)
    require_valid(module)
    return MergeBuild(config, module)

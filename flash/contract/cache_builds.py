"""The verified kernels other than attention: the kernel that appends new rows to a cache, and the
kernel that merges results of parts of the keys.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from flash.contract.built_kernel import BuiltKernel
from flash.kernels import append, merge
from flash.kernels.append import AppendConfig, append_kernel
from flash.kernels.merge import MergeConfig, merge_kernel
from flash.operands.declared import Operand
from ptxgen import ir
from ptxgen.check.verify import require_valid
from ptxgen.runtime.attributes import LaunchAttributes

if TYPE_CHECKING:
    from ptxgen.check.prove.contract import GlobalContract


class AppendBuild(BuiltKernel):
    """A verified append kernel."""

    def __init__(self, config: AppendConfig, module: ir.Module) -> None:
        super().__init__(module, append.THREADS, config.target)
        self.config = config

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """The new rows, the cache, rotary tables and queries, and the operands."""
        return (*self.config.arrays, *self.config.operands)

    @property
    def contract(self) -> dict[str, Any]:
        """See `flash.contract.cache.append_contract`."""
        # Imported here, because emitting text does not need it.
        from flash.contract.cache import append_contract

        return append_contract(self, self.config)

    @property
    def promised(self) -> GlobalContract:
        """See `flash.contract.cache.append_promise`."""
        from flash.contract.cache import append_promise

        return append_promise(self.config)


@lru_cache(maxsize=64)
def append_build(config: AppendConfig) -> AppendBuild:
    """The append kernel of a configuration. Raises `VerifyError` for a fault of the generator's."""
    module = append_kernel(config)
    require_valid(module)
    return AppendBuild(config, module)


class MergeBuild(BuiltKernel):
    """A verified merge kernel."""

    def __init__(self, config: MergeConfig, module: ir.Module) -> None:
        super().__init__(module, merge.THREADS, config.target)
        self.config = config

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """The partial results and the merged ones."""
        return self.config.arrays

    @property
    def attributes(self) -> LaunchAttributes:
        """The launch may begin before the grid before it has ended, where the kernel waits for that."""
        return LaunchAttributes(programmatic=self.config.overlaps).kept()

    @property
    def contract(self) -> dict[str, Any]:
        """See `flash.contract.cache.merge_contract`."""
        # Imported here, because emitting text does not need it.
        from flash.contract.cache import merge_contract

        return merge_contract(self, self.config)

    @property
    def promised(self) -> GlobalContract:
        """See `flash.contract.cache.merge_promise`."""
        from flash.contract.cache import merge_promise

        return merge_promise(self.config)


@lru_cache(maxsize=64)
def merge_build(config: MergeConfig) -> MergeBuild:
    """The merge kernel of a configuration. Raises `VerifyError` for a fault of the generator's."""
    module = merge_kernel(config)
    require_valid(module)
    return MergeBuild(config, module)

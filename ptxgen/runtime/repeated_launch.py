"""A launch that is checked once, and then repeated with other values of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ptxgen.errors import LaunchError
from ptxgen.runtime.attributes import NO_ATTRIBUTES
from ptxgen.runtime.bounded_cache import BoundedCache
from ptxgen.runtime.cuda_config import launch_config
from ptxgen.runtime.cuda_driver import Driver
from ptxgen.runtime.cuda_module import LoadedKernel
from ptxgen.runtime.plan import LaunchPlan
from ptxgen.tensormap import TensorMap

Encode = Callable[[TensorMap, int], bytes]  # as `CudaBackend.encode`


class RepeatedLaunch:
    """Launches of a loaded kernel that differ from `plan` in values and streams alone, so that all checks
    but those of values are made here. `encode` encodes a tensor map for a device.

    Raises `LaunchError` if the plan is not for `kernel`.
    """

    __slots__ = ("_block", "_configs", "_doing", "_driver", "_encode", "_front", "_maps", "_ordinal", "plan")

    def __init__(self, driver: Driver, kernel: LoadedKernel, plan: LaunchPlan, encode: Encode) -> None:
        if (
            plan.entry != kernel.entry
            or plan.dynamic_shared > kernel.max_dynamic_shared
            or plan.threads > kernel.max_threads
        ):
            raise _not_for(kernel, plan)
        self.plan = plan
        self._driver = driver
        self._encode = encode
        self._maps = plan.maps
        self._ordinal = kernel.ordinal
        self._doing = kernel.doing
        self._block = kernel.arguments(plan.slots)
        self._front = kernel.function, *plan.grid, *plan.block, plan.dynamic_shared
        has_attributes = plan.attributes is not NO_ATTRIBUTES
        self._configs = BoundedCache[int, tuple[Any, ...]]() if has_attributes else None  # by stream

    def put(self, values: Sequence[Any], stream: int) -> None:
        """Launch with `values`, one for each parameter, on `stream`; returns before the kernel has run.

        Raises `LaunchError`, which names the parameter, for a value that its type does not hold.
        """
        if self._maps:
            values = [self._encode(v, self._ordinal) if isinstance(v, TensorMap) else v for v in values]
        block, driver, doing = self._block, self._driver, self._doing
        with block.lock, driver.on(self._ordinal, doing):
            block.write(self.plan, values)
            if self._configs is None:
                name, arguments = "cuLaunchKernel", (*self._front, stream, block.address, 0)
            else:
                name, arguments = "cuLaunchKernelEx", (*self._config(stream), block.address, 0)
            status = driver.answer(name, arguments, doing)[0]
            if status:
                raise driver.error(name, status, doing)

    def put_over(self, addresses: Sequence[int], stream: int) -> None:
        """Launch over other arrays; `put` of `with_pointers`."""
        self.put(self.with_pointers(addresses), stream)

    def with_pointers(self, addresses: Sequence[int]) -> Sequence[Any]:
        """The values of a launch of other arrays; see `LaunchPlan.with_pointers`."""
        if 0 in addresses or self._maps:
            return self.plan.with_pointers(addresses).values
        return *addresses, *self.plan.values[len(addresses) :]

    def _config(self, stream: int) -> tuple[Any, ...]:
        """The `CUlaunchConfig` and the function of launches on a stream."""
        assert self._configs is not None
        config = self._configs.get(stream)
        if config is None:
            of = launch_config(self._driver.require(), self.plan, stream)
            config = self._configs.keep(stream, (of, self._front[0]))
        return config


def _not_for(kernel: LoadedKernel, plan: LaunchPlan) -> LaunchError:
    if plan.entry != kernel.entry:
        return LaunchError(
            f"cannot launch {plan.entry} with the loaded kernel {kernel.entry}; "
            "load the program the plan is for"
        )
    if plan.threads > kernel.max_threads:
        return LaunchError(
            f"{plan.entry}: a block has {plan.threads} threads, but with its {kernel.registers} "
            f"registers per thread this kernel can have {kernel.max_threads} on {kernel.device}; "
            "use a smaller block, or generate with .maxntid"
        )
    return LaunchError(
        f"{plan.entry}: a launch with {plan.dynamic_shared} bytes of dynamic shared memory, but it "
        f"was loaded on {kernel.device} for at most {kernel.max_dynamic_shared}; "
        f"load it with dynamic_shared={plan.dynamic_shared}"
    )

"""The output of `ptxgen emit`: the text, the contract or the stub of a kernel, once it is proved and
assembled as asked.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flash.commands.parts.emit_stub import example_of, stub_of
from ptxgen.commands.parts.exits import FAILED, NO_GPU, USAGE, StopError
from ptxgen.commands.parts.files import write_file
from ptxgen.errors import ConfigError
from ptxgen.target import Target, target, target_for_device

if TYPE_CHECKING:
    from flash.contract.built_kernel import BuiltKernel
    from ptxgen.runtime.assembler import Assembly


NATIVE: Final = "native"  # the name for the target of this machine's GPU


def find_target(name: str) -> Target:
    """The target called `name`; `native` is the target of the GPU, and only it opens the driver."""
    if name != NATIVE:
        return target(name)
    from ptxgen.runtime.cuda import cuda_backend

    backend = cuda_backend()
    reason = backend.why_unavailable()
    if reason:
        raise StopError(NO_GPU, f"--target {NATIVE}: {reason}; name a target, such as sm_90")
    device = backend.device_properties(backend.current_device())
    return target_for_device(device.major, device.minor)


def text_of(built: BuiltKernel, arguments: argparse.Namespace) -> str:
    """The text, the contract or the stub of a kernel, once it is proved and assembled as asked."""
    text = built.text
    if arguments.stub:
        text = stub_of(built, arguments)
    if arguments.json:
        text = to_json({**built.contract, **(_proofs(built) if arguments.prove else {})})
    if arguments.prove:
        _require_proofs(built)
    if arguments.assemble or arguments.cubin:
        assembly = _assembled(built)
        if arguments.assemble:
            print(_report(built, assembly), file=sys.stderr)
        _refuse_spills(built, assembly)
        if arguments.cubin:
            write_file(Path(arguments.cubin), assembly.cubin)
    if arguments.example:
        write_file(Path(arguments.example), example_of(built, arguments))
    return text


def to_json(value: Any) -> str:
    """A value as indented JSON text."""
    return json.dumps(value, indent=2) + "\n"


def _proofs(built: BuiltKernel) -> dict[str, Any]:
    return {"proof": built.proof.to_dict(), "global_proof": built.global_proof.to_dict()}


def _require_proofs(built: BuiltKernel) -> None:
    from ptxgen.check.prove.verdicts import RACES  # the provers, which a kernel of the cache does without

    print(f"{built.proof.report()}\n{built.proof.table()}", file=sys.stderr)
    print(f"{built.global_proof.report()}\n{RACES}", file=sys.stderr)
    built.proofs.require()


def _assembled(built: BuiltKernel) -> Assembly:
    try:
        # Imported here, because emitting text alone does not need it.
        from ptxgen.runtime.assembler import find_assembler
    except ModuleNotFoundError as error:
        raise StopError(
            FAILED,
            f"--assemble and --cubin need the whole package: {error}; run pip install . in the checkout",
        ) from error
    try:
        assembler = find_assembler(target=built.module.target)
    except ConfigError as error:  # an error of the environment, not of the kernel
        raise StopError(USAGE, str(error)) from error
    return assembler.assemble(built.text, built.module.target)


def _report(built: BuiltKernel, assembly: Assembly) -> str:
    limits, usage = built.target, assembly.kernel(built.kernel.name)
    shared = built.kernel.dynamic_shared_bytes
    ctas = limits.blocks_per_sm_for(built.threads, usage.registers, shared)
    rows = [
        ("kernel", built.kernel.name),
        ("assembler", f"{assembly.assembler} {assembly.version}, for {assembly.target}"),
        ("registers", f"{usage.registers} of {limits.registers_per_thread} per thread"),
        ("spills", f"{usage.spill_store_bytes} bytes stored, {usage.spill_load_bytes} loaded"),
        ("stack", f"{usage.stack_bytes} bytes per thread"),
        ("shared", f"{shared} of {limits.shared_per_block_optin} bytes per block"),
        ("occupancy", f"{ctas} CTAs of {built.threads} threads per multiprocessor"),
        ("cubin", f"{len(assembly.cubin)} bytes"),
        *(("advisory", advisory.text) for advisory in assembly.advisories),
    ]
    return "\n".join(f"{name:<10} {value}" for name, value in rows)


def _refuse_spills(built: BuiltKernel, assembly: Assembly) -> None:
    usage = assembly.kernel(built.kernel.name)
    spilled = usage.spill_store_bytes + usage.spill_load_bytes + usage.stack_bytes
    if spilled:
        raise StopError(
            FAILED,
            f"{usage.name} would keep {usage.stack_bytes} bytes per thread in local memory "
            f"({usage.spill_store_bytes} bytes of spill stores, {usage.spill_load_bytes} loads); "
            "use a smaller tile or block_q",
        )

"""Error messages for failed driver calls: the meaning and what to do; calls no driver."""

from __future__ import annotations

import re
from typing import Final

from ptxgen.errors import did_you_mean
from ptxgen.runtime.assembler_log import refusal

# After one of these errors the CUDA driver answers every call of the process with the same error:
# "To continue using CUDA, the process must be terminated and relaunched" (CUDA Driver API 13.0,
# `CUresult`; 214, 220 and 709 have the same effect: the context is gone, with all its memory).
POISONING: Final = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810})

# Advice by CUresult name, or by `call/name` where the meaning depends on the call.
_REMEDIES: Final = {
    "CUDA_ERROR_OUT_OF_MEMORY": "free GPU memory, or use smaller arrays",
    "CUDA_ERROR_NOT_INITIALIZED": (
        "a forked child cannot use its parent's CUDA: use multiprocessing's 'spawn'"
    ),
    "CUDA_ERROR_DEINITIALIZED": "the process is ending: launch nothing from exit handlers",
    "CUDA_ERROR_STUB_LIBRARY": "the toolkit's stub libcuda is found first: fix LD_LIBRARY_PATH",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "another process holds the GPU exclusively: wait for it",
    "CUDA_ERROR_NO_DEVICE": "check nvidia-smi and CUDA_VISIBLE_DEVICES",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver was updated while in use: reboot",
    "CUDA_ERROR_SYSTEM_NOT_READY": "start nvidia-fabricmanager, or look at dmesg",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": (
        "remove the CUDA compatibility package, or update the driver"
    ),
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "compile for the target of this GPU",
    "CUDA_ERROR_INVALID_IMAGE": "the program is damaged or no cubin for this driver: compile again",
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND": (
        "install the driver's libnvidia-ptxjitcompiler, or ptxas (pip install nvidia-cuda-nvcc)"
    ),
    "CUDA_ERROR_JIT_COMPILATION_DISABLED": (
        "unset CUDA_DISABLE_PTX_JIT, or install ptxas (pip install nvidia-cuda-nvcc)"
    ),
    "CUDA_ERROR_INVALID_CONTEXT": "the stream must belong to the device of the arrays",
    "CUDA_ERROR_INVALID_HANDLE": "the stream must be alive and belong to the device of the arrays",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "use a smaller tile or a smaller block",
    "cuMemFree/CUDA_ERROR_INVALID_VALUE": "the address was never allocated, or is free already",
    "cuPointerGetAttribute/CUDA_ERROR_INVALID_VALUE": "pass an array that lies on a GPU",
}
_CAPTURE: Final = "launch the kernel once before the capture begins"
_REPORT: Final = "see the CUDA Driver API manual for this error"

# The first CUDA release whose driver reads each PTX version: PTX ISA 9.1, "Release Notes", table
# "PTX Release History". Listed are versions whose minor numbers differ; the rest follow the rule.
_CUDA_OF_PTX: Final = {(8, 6): (12, 7), (8, 7): (12, 8), (8, 8): (12, 9)}
_FIRST_COMMON_PTX: Final = 7  # PTX 7.x is CUDA 11.x, 8.x is 12.x, 9.x is 13.x
_CUDA_AHEAD_OF_PTX: Final = 4


def failure(call: str, name: str, code: int, text: str, doing: str) -> str:
    """The message for a failed call; `doing` is the purpose of the call, such as "load saxpy"."""
    if "_STREAM_CAPTURE_" in name:
        remedy = _CAPTURE
    else:
        remedy = _REMEDIES.get(f"{call}/{name}") or _REMEDIES.get(name, _REPORT)
    return f"cannot {doing}: {_what(call, name, code, text)}; {remedy}"


def poisoned_now(call: str, name: str, code: int, text: str, doing: str) -> str:
    """The message for the call that reports that the context is destroyed."""
    return (
        f"cannot {doing}: {_what(call, name, code, text)}. "
        "A kernel that ran before, not always the last one, destroyed the CUDA context: no GPU "
        "work is possible any more in this process. Restart it; to find the cause, run the kernel "
        "with backend='interpreter', or under compute-sanitizer"
    )


def poisoned_before(cause: str, doing: str) -> str:
    """The message for calls after the context was destroyed.

    `cause` is `what_happened` of the call that reported it.
    """
    return (
        f"cannot {doing}: the CUDA context of this process was destroyed before ({cause}); "
        "restart the process"
    )


def what_happened(call: str, name: str, code: int) -> str:
    """A failed call with the name and code of its CUresult, in a few words."""
    return f"{call} returned {name} ({code})"


def _what(call: str, name: str, code: int, text: str) -> str:
    meaning = f", {text}" if text else ""
    return f"{what_happened(call, name, code)}{meaning}"


def driver_name(version: int) -> str:
    """The CUDA version in words, `"13.0"` for 13000, from the result of `cuDriverGetVersion`."""
    return f"{version // 1000}.{version % 1000 // 10}"


def too_new(text: str, entry: str, driver: int) -> str:
    """The message for PTX whose version the driver's compiler does not know."""
    version = _ptx_version(text)
    if version is None:
        return (
            f"cannot load {entry}: its text has no .version that the driver, which is for CUDA "
            f"{driver_name(driver)}, can read; begin it with .version and .target"
        )
    major, minor = version
    needed = _CUDA_OF_PTX.get(version, (major + _CUDA_AHEAD_OF_PTX, minor))
    since = f" (CUDA {needed[0]}.{needed[1]} or later reads it)" if major >= _FIRST_COMMON_PTX else ""
    return (
        f"cannot load {entry}: its text is PTX {major}.{minor}{since}, the installed driver is for "
        f"CUDA {driver_name(driver)}; update the NVIDIA driver, or generate for an older target, "
        "whose text has a lower .version"
    )


def jit_refusal(text: str, log: str, device: str, driver: int, outcome: str) -> str:
    """The message for PTX that the driver's compiler refused: reason, offending line, log."""
    compiler = f"the compiler of the driver (CUDA {driver_name(driver)})"
    return refusal(compiler, log, text, device, outcome)


def no_entry(entry: str, text: str) -> str:
    """The message for a program without the kernel `entry`; `text` is empty if it is a cubin."""
    names = re.findall(r"^[^\S\n]*(?:\.visible\s+)?\.entry\s+([\w$%]+)", text, re.MULTILINE)
    listed = f", only {', '.join(names)}{did_you_mean(entry, names)}" if names else ""
    return f"the program has no kernel {entry!r}{listed}; pass the name of its .entry"


def _ptx_version(text: str) -> tuple[int, int] | None:
    match = re.search(r"^\s*\.version\s+(\d+)\.(\d+)", text, re.MULTILINE)
    return (int(match[1]), int(match[2])) if match else None

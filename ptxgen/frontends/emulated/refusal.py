"""What the emulated GPU does not answer is refused by name."""

from __future__ import annotations

from ptxgen.errors import BackendError


def refusal(call: str, why: str = "it has no answer that would be right") -> BackendError:
    """The error of a call that the emulated GPU does not answer."""
    return BackendError(
        f"{call} is not answered under --gpu=interpreter: {why}; run this test on a GPU, or skip it where "
        "torch.cuda.get_device_name() starts with 'PTX interpreter'"
    )

"""`CUlaunchConfig`: a launch with attributes, as the driver takes it."""

from __future__ import annotations

from typing import Any

from ptxgen.runtime.attributes import NO_ATTRIBUTES
from ptxgen.runtime.plan import LaunchPlan


def launch_config(cuda: Any, plan: LaunchPlan, stream: int) -> Any:
    """The `CUlaunchConfig` of a plan; `cuda` is the driver's module."""
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = plan.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = plan.block
    config.sharedMemBytes = plan.dynamic_shared
    config.hStream = cuda.CUstream(stream)
    ids, asked = cuda.CUlaunchAttributeID, plan.attributes
    attributes = []
    if asked.cluster != NO_ATTRIBUTES.cluster:
        attribute = _attribute(cuda, ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        dims = attribute.value.clusterDim
        dims.x, dims.y, dims.z = asked.cluster
        attributes.append(attribute)
    if asked.cooperative:
        attribute = _attribute(cuda, ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
        attribute.value.cooperative = 1
        attributes.append(attribute)
    if asked.programmatic:
        attribute = _attribute(cuda, ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def _attribute(cuda: Any, which: Any) -> Any:
    attribute = cuda.CUlaunchAttribute()
    attribute.id = which
    return attribute

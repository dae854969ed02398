"""The kernels of gradients without a launch: their PTX and contracts, for other host programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from flash.contract.gradients import AuxiliaryBuild, GradientBuild, verified_auxiliary, verified_gradient
from flash.families.request import natural_alignment
from flash.families.wgmma import WGMMA_TARGET
from flash.kernels.rounded_elements import ElementsConfig
from flash.kernels.sum_terms import SumConfig
from flash.kernels.widened_rows import WideConfig
from flash.operands.dtype_names import DTypeLike, InputDTypeLike
from flash.operands.dtypes import FP8_DTYPES, FP8_NAMES, DType, config_name, require_dtype
from flash.problem.config import DEFAULT_TARGET, AttentionConfig
from flash.problem.gradient_choice import gradient_config, has_one_sweep, require_differentiable
from flash.problem.gradients import DELTAS, ELEMENTS, KEYS, QUERIES, SCORES, SUMS, WIDENED, owners_of
from flash.scores.bias import Bias
from ptxgen.errors import ConfigError, did_you_mean, shown
from ptxgen.target import target as find_target

OWNERS: Final = (QUERIES, KEYS, SCORES, ELEMENTS, DELTAS, SUMS)


def backward(
    config: AttentionConfig,
    owner: str,
    *,
    dlse: bool = False,
    wanted: Iterable[str] = (),
    deterministic: bool = True,
    dout_dtype: InputDTypeLike | None = None,
) -> GradientBuild:
    """The kernel of gradients whose CTAs own rows of `owner`: "queries" writes dQ, and D for the others;
    "keys" writes dK and dV; "scores" writes the gradient of a bias; "elements" adds to exact sums of the
    gradients of the arrays of aux that are wanted, which kernels of `rounded_elements` round. The kernels of
    a call are launched in this order. Tiles are those of a table; the config's are of the forward kernel. For
    sm_90a the kernels of f16 and bf16 that own queries or keys use `wgmma` and take tensor maps, if rows are
    multiples of 16 bytes; in one sweep for some sizes and features (docs/backward.md).

    Unless `deterministic`, one sweep makes all gradients: "deltas" writes D, "keys" writes dK and dV and
    adds to f32 sums of dQ by atomics, "sums" writes dQ from these, and "scores" and "elements" are as above.

    `dlse`: whether a launch of the kernel that writes D takes the gradient of LSE. `wanted`: the arrays of
    scores, by argument, for whose gradients the kernels write terms, which a kernel of `sum_terms` sums:
    "alibi_slopes" and "sink" with owner "queries", "key_bias" with owner "keys", where the config has them;
    in one sweep "sink" with "deltas" and the others with "keys". "bias" is what owner "scores" is for, "aux_"
    and the name of an array of aux what owner "elements" is for. All kernels of a call can be given the same
    options.

    With Q, K and V of fp8 kernels take dO of `dout_dtype`, "e4m3" or "e5m2", by default of their type, and
    what kernels of `widened_rows` wrote.

    Raises `ConfigError` for what has no such kernel, `VerifyError` for a fault of the generator.
    """
    caller = "backward"
    if owner not in OWNERS:
        owners = ", ".join(map(repr, OWNERS))
        raise ConfigError(
            f"{caller}: owner must be one of {owners}, got {shown(owner)}{did_you_mean(owner, OWNERS)}"
        )
    in_order = (*owners_of(one_sweep=not deterministic), SCORES, ELEMENTS)
    if owner not in in_order:
        raise ConfigError(
            f"{caller}: owner={owner!r} is none of the kernels with deterministic={deterministic}, which are "
            f"{', '.join(in_order)}; use deterministic={not deterministic}"
        )
    if not deterministic and not has_one_sweep(config):
        raise ConfigError(
            f"{caller}: one sweep has no kernels for head_dim={config.head_dim}, "
            f"head_dim_v={config.value_dim}, "
            f"dtype={config.dtype!r} with precision={config.precision!r}; use deterministic=True"
        )
    if config.page_size is not None:
        raise ConfigError(
            f"{caller}: keys and values in pages have no gradients, got page_size={config.page_size}; use "
            "page_size=None"
        )
    if owner == SCORES and not config.features.has(Bias):
        raise ConfigError(
            f"{caller}: owner={SCORES!r} is for the gradient of a bias, which the config does not have; give "
            f"bias='f32', or take owner={QUERIES!r} and owner={KEYS!r}"
        )
    known = config.differentiable
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    for name in names:
        if name not in known:
            among = ", ".join(known) if known else "none, because the config asks for no such array"
            raise ConfigError(
                f"{caller}: wanted must name arrays of scores with a gradient ({among}), got "
                f"{shown(name)}{did_you_mean(name, known)}"
            )
    if owner == ELEMENTS and set(names).isdisjoint(config.aux_operands):
        raise ConfigError(
            f"{caller}: owner={ELEMENTS!r} is for gradients of arrays of aux, of which none is wanted; give "
            "wanted=['aux_NAME'] with a score_mod that reads NAME"
        )
    natural = natural_alignment(config.head_dim, config.value_dim, config.element)
    return verified_gradient(
        gradient_config(
            config,
            owner,
            find_target(config.target or DEFAULT_TARGET),
            natural if config.alignment == "auto" else int(config.alignment),
            with_dlse=dlse,
            wanted=tuple(name for name in known if name in names),
            caller=caller,
            one_sweep=not deterministic,
            dout_dtype=_gradient_dtype(caller, config, dout_dtype),
        )
    )


def widened_rows(
    config: AttentionConfig, matrix: str, *, dout_dtype: InputDTypeLike | None = None
) -> AuxiliaryBuild:
    """The kernel that writes the rows of a `matrix` of fp8, "Q", "K" or "dO", in bf16, each number times its
    scale: what kernels of `backward` read as "Q_wide", "K_wide" and "dO_wide". A call launches all three
    first. `dout_dtype` is as in `backward`.

    Raises `ConfigError` for a config that is not of fp8, or another matrix, `VerifyError` for a fault of the
    generator.
    """
    caller = "widened_rows"
    if not config.is_fp8:
        raise ConfigError(
            f"{caller}: config must be one with Q, K and V of fp8, got dtype={config.dtype!r}; kernels of "
            "gradients of this type read its rows as they are"
        )
    if matrix not in WIDENED:
        raise ConfigError(
            f"{caller}: matrix must be one of {', '.join(map(repr, WIDENED))}, got {shown(matrix)}"
            f"{did_you_mean(matrix, WIDENED)}"
        )
    require_differentiable(config, caller)
    target = find_target(config.target or WGMMA_TARGET)
    dtype, columns = config.element, config.head_dim
    if matrix == "dO":
        dtype, columns = _gradient_dtype(caller, config, dout_dtype) or dtype, config.value_dim
    return verified_auxiliary(WideConfig(target, dtype, columns, config.scaled_rows))


def rounded_elements(dtype: DTypeLike = "f32", *, target: str | None = None) -> AuxiliaryBuild:
    """The kernel that rounds exact sums, as a kernel of `backward` with owner "elements" adds them up, to the
    gradient of an array of aux of `dtype`.

    Raises `ConfigError` for another type, `VerifyError` for a fault of the generator.
    """
    of_array = require_dtype("rounded_elements", "dtype", dtype)
    return verified_auxiliary(ElementsConfig(find_target(target or DEFAULT_TARGET), of_array))


def _gradient_dtype(caller: str, config: AttentionConfig, dout_dtype: object) -> DType | None:
    """The type of dO of fp8; None if it is that of Q. Raises `ConfigError` for another `dout_dtype`."""
    name = config_name(dout_dtype)
    if name is None:
        return None
    if not config.is_fp8:
        raise ConfigError(
            f"{caller}: dout_dtype is for Q, K and V of fp8, else dO is of the type of O, got "
            f"{shown(dout_dtype)} with dtype={config.dtype!r}; leave it out"
        )
    if name not in FP8_DTYPES:
        raise ConfigError(
            f"{caller}: dout_dtype must be {FP8_NAMES}, got {shown(dout_dtype)}"
            f"{did_you_mean(name, FP8_DTYPES)}"
        )
    return FP8_DTYPES[str(name)]


def sum_terms(dtype: DTypeLike = "f32", *, target: str | None = None) -> AuxiliaryBuild:
    """The kernel that sums terms, f32 as the kernels of `backward` write them, to the gradient of an array
    of scores of `dtype`, along the axes along which the array was broadcast.

    Raises `ConfigError` for another type, `VerifyError` for a fault of the generator.
    """
    return verified_auxiliary(
        SumConfig(find_target(target or DEFAULT_TARGET), require_dtype("sum_terms", "dtype", dtype))
    )

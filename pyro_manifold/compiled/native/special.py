"""Special functions and other elementwise operators, by functions of special.h."""

from __future__ import annotations

from pyro_manifold.compiled.native.values import UnsupportedOperatorError

ELEMENTWISE = {
    "copysign": "v_copysign({0}, {1})",
    "digamma": "v_digamma({0})",
    "erfinv": "v_erfinv({0})",
    "fmax": "v_fmax({0}, {1})",
    "fmin": "v_fmin({0}, {1})",
    "frac": "v_frac({0})",
    "heaviside": "v_heaviside({0}, {1})",
    "hypot": "v_hypot({0}, {1})",
    "i0": "v_i0({0})",
    "lerp": "v_lerp({0}, {1}, {2})",
    "lgamma": "v_lgamma({0})",
    "logaddexp": "v_logaddexp({0}, {1})",
    "logaddexp2": "v_logaddexp2({0}, {1})",
    "sgn": "v_sign({0})",
    "signbit": "v_signbit({0})",
    "sinc": "v_sinc({0})",
    "special_entr": "v_entr({0})",
    "special_erfcx": "v_erfcx({0})",
    "special_i0e": "v_i0e({0})",
    "special_i1": "v_i1({0})",
    "special_i1e": "v_i1e({0})",
    "special_log_ndtr": "v_log_ndtr({0})",
    "special_ndtri": "v_ndtri({0})",
    "special_xlog1py": "v_xlog1py({0}, {1})",
    "special_zeta": "v_zeta({0}, {1})",
    "xlogy": "v_xlogy({0}, {1})",
}
"""Elementwise functions, in the format of `operators.ELEMENTWISE`."""

_ROUNDED_QUOTIENTS = {None: "{0} / {1}", "trunc": "v_trunc({0} / {1})", "floor": "v_floor_divide({0}, {1})"}
_LARGEST_ORDER = 170
"""Largest order of a derivative of digamma: the factorial of the next one overflows."""


def quotient(rounding: str | None) -> str:
    """Return the template of a division whose result may be rounded to integers."""
    return _ROUNDED_QUOTIENTS[rounding]


def polygamma(order: int) -> str:
    """Return the template of the derivative of digamma of an order."""
    if order > _LARGEST_ORDER:
        raise UnsupportedOperatorError(f"polygamma of order {order}")
    return f"v_polygamma(spread({order}), {{0}})" if order else ELEMENTWISE["digamma"]


def rounded(decimals: int) -> str:
    """Return the template of rounding to decimals, or for negative ones to tens, hundreds and so on."""
    power = f"spread({10 ** abs(decimals)})"
    if decimals < 0:
        return f"v_rint({{0}} / {power}) * {power}"
    return f"v_rint({{0}} * {power}) / {power}" if decimals else "v_rint({0})"

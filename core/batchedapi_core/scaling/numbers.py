"""Numbers on their way into a status and back; anybody may have edited it meanwhile."""


def short(value: float) -> float:
    """Ten digits: the fit subtracts products of these, six would show."""
    return float(f"{value:.10g}")


def number(value: object, least: float, most: float) -> float | None:
    """`value` as a float; None unless it is a number within `least` and `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if least <= value <= most else None

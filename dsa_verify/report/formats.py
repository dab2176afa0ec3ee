"""Numbers as a reader sees them: scores in points, shares of what is allowed, bytes."""


def points(value: float | None, sign: str = "-") -> str:
    """A score or a difference in points, hundredths of a score; `none` where there is none. sign: as of `format`."""
    return "none" if value is None else f"{100 * value:{sign}.2f}"


def rounded_points(value: float) -> str:
    """A margin in points, as somebody chose it: `1.5`, `5`."""
    return f"{100 * value:.3g}"


def share(value: float) -> str:
    """A share with two digits behind the point, or with its power of ten where that would say nothing."""
    return f"{value:.2f}" if value == 0.0 or 0.005 <= value < 100 else f"{value:.1e}"


def size(count: float | None) -> str:
    """Bytes; nothing where there is no number."""
    if count is None:
        return ""
    power = next((power for power in (3, 2, 1) if count >= 1024**power), 0)
    return f"{count / 1024**power:.2f} {'KMG'[power - 1]}iB" if power else f"{count:.0f} B"

"""How far axes reach, and where they have numbers."""

from matplotlib.axes import Axes
from matplotlib.ticker import FormatStrFormatter, LogLocator


def by_doubling(axes: Axes) -> None:
    """A logarithmic axis with a number at each power of two, and between them where there are few."""
    axes.set_xscale("log", base=2)
    low, high = axes.get_xlim()
    between = (1, 1.25, 1.5, 1.75) if high < 2.5 * low else (1, 1.5) if high < 5 * low else (1,)
    axes.xaxis.set_major_locator(LogLocator(2, subs=between))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))


def end_above_100(axes: Axes) -> None:
    """So that points at 100 % are whole, and no room is lost where all are near it."""
    axes.set_ylim(top=100 + (100 - axes.get_ylim()[0]) / 15)

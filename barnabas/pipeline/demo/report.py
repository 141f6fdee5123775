"""Shows the delays as a table in the terminal and as a plot.

RULES    1. The table shows every figure: departures and their average delay for each carrier and month.
         2. Nothing is computed here, except rounding to a tenth of a minute.
"""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from barnabas.pipeline.demo.flights import Delay, Delays

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
LATE_MINUTES = 20.0
TABLE_WIDTH = 100
COLOURS = "YlOrRd"
EARLY_MINUTES, DARKEST_MINUTES, WHITE_ABOVE_MINUTES = -6.0, 45.0, 27.0


def delay_table(delays: Delays) -> Table:
    """Returns a table, carriers by months: average delay in minutes above departures."""
    table = Table(
        title="Average departure delay in minutes, and below it departures, by carrier and month",
        caption="New York, 2013. Red: 20 minutes late and more. Green: early.",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
    )
    table.add_column("", style="bold")
    for month in MONTHS:
        table.add_column(month, justify="right", no_wrap=True)
    table.add_column("year", justify="right", style="bold", no_wrap=True)
    for carrier in carriers_by_size(delays):
        cells = [_cell(delays.get((carrier, month))) for month in range(1, 13)]
        table.add_row(carrier, *cells, _cell(year_of(delays, carrier)))
    return table


def year_of(delays: Delays, carrier: str) -> Delay:
    """Returns the sum of a carrier's months."""
    months = [delay for (name, _), delay in delays.items() if name == carrier]
    return Delay(*(sum(figures) for figures in zip(*months, strict=True)))


def carriers_by_size(delays: Delays) -> list[str]:
    """Returns the carriers by number of departures, largest first."""
    carriers = sorted({carrier for carrier, _ in delays})
    return sorted(carriers, key=lambda carrier: -year_of(delays, carrier).departures)


def draw_delays(delays: Delays, names: dict[str, str], path: Path) -> None:
    """Draws carriers by months as PNG, coloured by average delay, with delay and departures in each cell."""
    from matplotlib.figure import Figure

    carriers = carriers_by_size(delays)
    averages = [[_average(delays.get((carrier, month))) for month in range(1, 13)] for carrier in carriers]
    figure = Figure(figsize=(13, 9), layout="constrained")
    field = figure.subplots()
    picture = field.imshow(averages, cmap=COLOURS, vmin=EARLY_MINUTES, vmax=DARKEST_MINUTES, aspect="auto")
    for row, carrier in enumerate(carriers):
        for month in range(1, 13):
            delay = delays.get((carrier, month))
            average = _average(delay)
            if delay is None or isnan(average):
                continue
            colour = "white" if average > WHITE_ABOVE_MINUTES else "black"
            place: dict[str, Any] = {"ha": "center", "color": colour}
            field.text(month - 1, row, f"{average:.1f}", va="bottom", fontsize=9, weight="bold", **place)
            field.text(month - 1, row + 0.08, f"{delay.departures:,}", va="top", fontsize=7, **place)
    field.set_xticks(range(12), MONTHS)
    field.set_yticks(range(len(carriers)), [names.get(carrier, carrier) for carrier in carriers])
    field.tick_params(length=0)
    for side in field.spines.values():
        side.set_visible(False)
    figure.colorbar(picture, ax=field, label="average departure delay in minutes", shrink=0.5, extend="both")
    field.set_title(
        "Flights that left New York in 2013: average delay in minutes, and departures", loc="left", fontsize=13
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _average(delay: Delay | None) -> float:
    average = None if delay is None else delay.average
    return float("nan") if average is None else average


def _cell(delay: Delay | None) -> Text:
    if delay is None:
        return Text("")
    average = delay.average
    if average is None:
        return Text("-\n0", style="dim")
    style = "red" if average >= LATE_MINUTES else "green" if average < 0 else ""
    cell = Text(f"{average:.1f}", style=style)
    return cell.append(f"\n{delay.departures}", style="dim")

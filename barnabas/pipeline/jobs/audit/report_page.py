"""The audit's report as one HTML page: the verdict, a plot of each partition, records by day, and the differences.

RULES    1. The page is self-contained: plots are inline SVG; it loads no script, font or image.
         2. All external text is escaped.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.durable_files import write_durably

WIDTH = 760
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2530}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
td,th{padding:.25rem .6rem;border-bottom:1px solid #dde3ea;text-align:right}td:first-child,th:first-child{text-align:left}
.yes{color:#15703c}.no{color:#b3261e}.bar{fill:#3a7ca5}.gone{fill:#c9d3dd}.pending{fill:#f0b429}.fault{fill:#b3261e}
svg text{font-size:11px;fill:#44515f}.scroll{overflow-x:auto}
"""


def write_page(path: Path, report: Any) -> None:
    """Writes the page; creates its folder. Raises JobError if the disk refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, page_of(report))
    except OSError as failure:
        raise JobError(f"The report cannot be written to {path}: {failure.strerror}.") from failure


def page_of(report: Any) -> str:
    """Returns the page as text."""
    verdict = "The topics and the archive agree." if report.agrees else "The topics and the archive do not agree."
    kind = "yes" if report.agrees else "no"
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Audit of {_safe(report.archive)}</title>",
        f"<style>{STYLE}</style><h1>Audit of {_safe(report.archive)}</h1>",
        f"<p class='{kind}'><strong>{verdict}</strong></p>",
        f"<p>{report.records:,} records of the topics compared with {report.files:,} files, {_safe(report.when)}.</p>",
        "<h2>Partitions by offset</h2>",
        "<p>grey: deleted on the broker; blue: archived and compared; yellow: not archived yet; red: differs</p>",
        f"<div class='scroll'>{_partitions_plot(report.partitions)}</div>",
        _partitions_table(report.partitions),
        "<h2>Records in the archive by day (UTC)</h2>",
        f"<div class='scroll'>{_days_plot(report.days)}</div>",
        *_files(report),
        _examples(report.examples),
    ]
    return "\n".join(parts) + "\n</html>\n"


def _partitions_plot(partitions: list[dict[str, Any]]) -> str:
    rows = []
    for number, partition in enumerate(partitions):
        first = min(partition["archived_from"], partition["log_start"])
        scale = (WIDTH - 180) / max(1, partition["log_end"] - first)
        y = number * 22

        def bar(kind: str, start: int, end: int, *, first: int = first, scale: float = scale, y: int = y) -> str:
            x, width = 170 + (start - first) * scale, max(0, end - start) * scale
            return f"<rect class='{kind}' x='{x:.1f}' y='{y + 3}' width='{width:.1f}' height='14'/>"

        rows.append(f"<text x='0' y='{y + 14}'>{_safe(partition['topic'])}-{partition['partition']}</text>")
        rows.append(bar("gone", partition["archived_from"], partition["compared_from"]))
        rows.append(
            bar("bar" if partition["agrees"] else "fault", partition["compared_from"], partition["archived_to"])
        )
        rows.append(bar("pending", partition["archived_to"], partition["log_end"]))
    return f"<svg width='{WIDTH}' height='{22 * len(partitions) + 4}' role='img'>{''.join(rows)}</svg>"


def _partitions_table(partitions: list[dict[str, Any]]) -> str:
    columns = {
        "log_start": "log start",
        "log_end": "log end",
        "archived_to": "archived to",
        "topic_records": "in the topic",
        "archive_records": "in the archive",
        "lost": "lost",
        "doubled": "doubled",
        "altered": "altered",
        "unexpected": "unexpected",
        "compacted_since": "compacted since",
        "pending": "waiting",
        "steps_back": "steps back in time",
    }
    head = "".join(f"<th>{title}</th>" for title in columns.values())
    rows = []
    for partition in partitions:
        kind = "yes" if partition["agrees"] else "no"
        cells = "".join(f"<td>{partition[name]:,}</td>" for name in columns)
        gaps = (
            ", ".join(f"{count:,} {_safe(name.replace('_', ' '))}" for name, count in partition["gaps"].items())
            or "none"
        )
        name = f"{_safe(partition['topic'])}-{partition['partition']}"
        rows.append(f"<tr><td class='{kind}'>{name}</td>{cells}<td>{gaps}</td></tr>")
    return f"<div class='scroll'><table><tr><th></th>{head}<th>offsets without a record</th></tr>{''.join(rows)}</table></div>"


def _days_plot(days: dict[str, int]) -> str:
    most = max(days.values(), default=1)
    step = min(40.0, (WIDTH - 20) / max(1, len(days)))
    bars = []
    for number, (day, count) in enumerate(days.items()):
        height = 110 * count / most
        box = f"x='{number * step:.1f}' y='{120 - height:.1f}' width='{max(1.0, step - 1):.1f}' height='{height:.1f}'"
        bars.append(f"<rect class='bar' {box}><title>{_safe(day)}: {count:,}</title></rect>")
    if days:
        bars.append(f"<text x='0' y='136'>{_safe(min(days))}</text>")
        bars.append(f"<text x='{WIDTH}' y='136' text-anchor='end'>{_safe(max(days))}, at most {most:,} a day</text>")
    return f"<svg width='{WIDTH}' height='142' role='img'>{''.join(bars)}</svg>"


def _files(report: Any) -> list[str]:
    faults = {
        "Missing files": report.missing_files,
        "Files that are not in the manifest": report.unknown_files,
        "Files that differ from the manifest": report.altered_files,
        "Files that cannot be read": report.unreadable_files,
        "Rounds with a wrong number of malformed records": report.miscounted_rounds,
        "Partitions with a smaller archived end than in an earlier audit": report.cut_off,
    }
    counts = {
        "records whose data or error differs from the decoded value": report.misdecoded,
        "malformed records without a dead letter": report.missing_dead_letters,
    }
    wrong = [f"<p class='no'>{count:,} {label}</p>" for label, count in counts.items() if count]
    return wrong + [
        f"<h2 class='no'>{title}: {len(paths):,}</h2><ul>{''.join(f'<li>{_safe(path)}</li>' for path in paths[:50])}</ul>"
        for title, paths in faults.items()
        if paths
    ]


def _examples(examples: list[dict[str, Any]]) -> str:
    if not examples:
        return ""
    rows = "".join(
        f"<tr><td>{example['kind']}</td><td>{_safe(example['topic'])}-{example['partition']}</td>"
        f"<td>{example['offset']:,}</td><td>{example['copies']}</td></tr>"
        for example in examples
    )
    head = "<tr><th>what</th><th>partition</th><th>offset</th><th>copies in the archive</th></tr>"
    return f"<h2 class='no'>Records that differ, the first of them</h2><table>{head}{rows}</table>"


def _safe(text: str) -> str:
    return html.escape(str(text))

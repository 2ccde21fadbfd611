"""Draw docs/quickstart.svg from a quickstart's run folders: python docs/quickstart_picture.py runs/quickstart."""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 780, 320, 56, 44, 40, 250
COLOURS = {"fedavg": "#8a8f98", "fedalt": "#1f6feb"}
NAMES = {"fedavg": "FedAvg: one model for all", "fedalt": "FedAlt: personal output layer"}


def line(rows: list[dict[str, float]], key: str, last: int) -> str:
    """The points of one curve."""
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - TOP
    return " ".join(f"{LEFT + r['round'] / last * plot_width:.1f},{TOP + (1 - r[key]) * plot_height:.1f}" for r in rows)


def main(folder: Path) -> None:
    """Write the picture."""
    runs = {n: [json.loads(t) for t in (folder / n / "history.jsonl").read_text().splitlines()] for n in COLOURS}
    last = max(rows[-1]["round"] for rows in runs.values())
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-weight="bold">Test accuracy of 50 clients on digits dealt by Dirichlet</text>',
    ]
    for share in (0, 25, 50, 75, 100):
        y = TOP + (1 - share / 100) * (floor - TOP)
        parts += [
            f'<line x1="{LEFT}" y1="{y}" x2="{right}" y2="{y}" stroke="#e3e5e8"/>',
            f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end" fill="#555">{share}%</text>',
        ]
    for t in range(0, last + 1, 10):
        x = LEFT + t / last * (right - LEFT)
        parts.append(f'<text x="{x}" y="{floor + 18}" text-anchor="middle" fill="#555">{t}</text>')
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle" fill="#555">round</text>')
    for i, (name, rows) in enumerate(runs.items()):
        colour, y = COLOURS[name], TOP + 16 + 64 * (1 - i)
        mean, worst = (f"{100 * rows[-1][key]:.1f}%" for key in ("metric", "worst_decile"))
        parts += [
            f'<polyline points="{line(rows, "metric", last)}" fill="none" stroke="{colour}" stroke-width="2.5"/>',
            f'<polyline points="{line(rows, "worst_decile", last)}" fill="none" stroke="{colour}" stroke-width="1.5"'
            ' stroke-dasharray="5 4"/>',
            f'<text x="{right + 12}" y="{y}" fill="{colour}" font-weight="bold" font-size="12">{NAMES[name]}</text>',
            f'<text x="{right + 12}" y="{y + 17}" fill="#333" font-size="12">mean {mean}</text>',
            f'<text x="{right + 12}" y="{y + 33}" fill="#333" font-size="12">worst tenth {worst} (dashed)</text>',
        ]
    (Path(__file__).parent / "quickstart.svg").write_text("\n".join([*parts, "</svg>"]) + "\n")


main(Path(sys.argv[1]))

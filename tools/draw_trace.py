#!/usr/bin/env python3
"""Draws a few steps of `tailrace_ids --trace FILE` as an SVG: host lanes above, the device's steps and the idle time
before each below.

usage: draw_trace.py TRACE.json OUT.svg [STEPS [AT]]
STEPS (default 4) device steps are shown, from the one before the first that is mixed and follows a decode step;
AT (0..) skips so many of those.
"""
import json
import sys
from html import escape

WIDTH, LEFT, LANE, BAR, TOP = 1100, 90, 46, 26, 46
LANES = [((1, 1), "plan"), ((1, 2), "launch"), ((1, 3), "process"), ((2, 1), "device")]
COLOURS = {"plan": "#4e79a7", "launch": "#f28e2b", "process": "#59a14f", "decode": "#9c755f", "mixed": "#b07aa1",
           "extend": "#e15759"}


def load(path):
    with open(path, encoding="utf-8") as file:
        events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
    return sorted(events, key=lambda e: e["ts"])


def window(events, count, skip):
    steps = [e for e in events if (e["pid"], e["tid"]) == (2, 1)]
    firsts = [i for i in range(1, len(steps)) if steps[i]["name"] == "mixed" and steps[i - 1]["name"] == "decode"]
    if skip >= len(firsts):
        sys.exit("the trace has no such mixed step behind a decode step")
    shown = steps[firsts[skip] - 1:firsts[skip] - 1 + count]
    return shown[0]["ts"], shown[-1]["ts"] + shown[-1]["dur"], {e["args"]["step"] for e in shown}


def labels(event):
    """The longest first; the last is used where none fits."""
    args = event["args"]
    if event["pid"] == 1:
        return [str(args["step"])]
    short = f"{args['step']}: {event['name']}"
    return [f"{short}, {args['decode_rows']} decode rows, {args['tokens']} tokens" + (", slab" if args["slab"] else ""),
            f"{short}, {args['tokens']} tokens", short, ""]


def draw(events, begin, end, steps):
    begin = min([begin] + [e["ts"] for e in events if e["pid"] == 1 and e["args"]["step"] in steps])
    scale = (WIDTH - LEFT - 10) / (end - begin)
    height = TOP + LANE * len(LANES) + 10
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
           'font-size="11">', f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    tick = next(t for t in (base * 10 ** power for power in range(9) for base in (1, 2, 5)) if (end - begin) / t <= 12)
    for i in range(int((end - begin) / tick) + 1):
        x = LEFT + i * tick * scale
        out.append(f'<line x1="{x:.1f}" y1="{TOP - 14}" x2="{x:.1f}" y2="{height - 10}" stroke="#ddd"/>')
        out.append(f'<text x="{x + 2:.1f}" y="{TOP - 18}" fill="#666">{i * tick / 1000:g} ms</text>')
    for row, (lane, name) in enumerate(LANES):
        y = TOP + LANE * row
        out.append(f'<text x="6" y="{y + 17}">{"GPU" if lane[0] == 2 else "host"}: {name}</text>')
        for event in events:
            if (event["pid"], event["tid"]) != lane or event["args"]["step"] not in steps:
                continue
            x, width = LEFT + (event["ts"] - begin) * scale, max(event["dur"] * scale, 0.6)
            out.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[event["name"]]}">'
                       f'<title>{escape(labels(event)[0])}</title></rect>')
            text = next((t for t in labels(event) if len(t) * 6.6 < width), labels(event)[-1])
            fits = len(text) * 6.6 < width
            out.append(f'<text x="{x + 2:.1f}" y="{y + (17 if fits else BAR + 11)}" '
                       f'fill="{"white" if fits else "#444"}">{escape(text)}</text>')
            if lane[0] == 2 and event["ts"] > begin:
                idle = f'{event["args"]["idle_before_us"]:.1f} us'
                out.append(f'<text x="{x:.1f}" y="{y + BAR + 12}" fill="#444">{idle}</text>')
    out.append(f'<text x="6" y="{height - 12}" fill="#444">idle before</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    if not 3 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    numbers = [int(text) for text in sys.argv[3:]] + [4, 0][len(sys.argv) - 3:]
    events = load(sys.argv[1])
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(draw(events, *window(events, *numbers)))


if __name__ == "__main__":
    main()

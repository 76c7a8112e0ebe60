"""The picture of the house: `python docs/tools/house.py` draws docs/house.svg from the layers that a test enforces."""

import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs/house.svg"
WORDS = {
    "cli": "flags to arguments, and out",
    "serve": "models by HTTP",
    "studies": "the paper, run again",
    "exports": "for other programs",
    "ray": "clusters of Ray",
    "verbs": "one function for each command",
    "evaluation": "accuracy, few shots, transfer, VTAB",
    "inspection": "what a model looks at",
    "train": "one loop for every objective",
    "runtime": "the machine; a model made fast",
    "checkpoint": "weights in and out, any layout",
    "models": "parameters: ViT, hybrids, BiT",
    "data": "bytes to batches",
    "ops": "mathematics: functions of tensors",
    "config": "what is meant: frozen, checked, no torch",
    "files": "disk and network",
    "figures": "pictures",
    "errors": "what was expected, what came, what to do",
}
# The panes of the window, from the roof down.
COLORS = ("#244f9c", "#b0204e", "#c98a1b", "#1f7a55", "#4568b8", "#cc5a2e", "#66398f")
WIDTH, FLOOR, GAP, SIDE = 760, 46, 6, 30


def house(floors: list[list[str]]) -> str:
    """Draw floors, the highest first, each with its rooms."""
    roof, ground = 64, 34
    height = roof + len(floors) * (FLOOR + GAP) + ground
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" role="img">',
        "<title>The layers of Vitrail: a room imports only from floors below it</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#fbfaf6"/>',
        f'<path d="M {SIDE} {roof - 8} L {WIDTH / 2:g} 14 L {WIDTH - SIDE} {roof - 8} Z" fill="#22232b"/>',
        f'<text x="{WIDTH / 2:g}" y="{roof - 16}" fill="#fbfaf6" font-size="15" text-anchor="middle">'
        "import vitrail</text>",
    ]
    for level, rooms in enumerate(floors):
        top = roof + level * (FLOOR + GAP)
        wide = (WIDTH - 2 * SIDE - GAP * (len(rooms) - 1)) / len(rooms)
        for place, room in enumerate(rooms):
            left = SIDE + place * (wide + GAP)
            middle = f'x="{left + wide / 2:g}" text-anchor="middle" fill="#fff"'
            color = COLORS[level % len(COLORS)]
            parts += [
                f'<rect x="{left:g}" y="{top}" width="{wide:g}" height="{FLOOR}" rx="3" fill="{color}"/>',
                f'<text {middle} y="{top + 20}" font-size="15" font-weight="600">{escape(room)}</text>',
                f'<text {middle} y="{top + 37}" font-size="12.5">{escape(WORDS[room])}</text>',
            ]
    end = roof + len(floors) * (FLOOR + GAP)
    parts += [
        f'<text x="{WIDTH / 2:g}" y="{end + 16}" fill="#22232b" font-size="13" text-anchor="middle">'
        "A room imports only from floors below its own; rooms on one floor never import each other.</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def drawn() -> str:
    """Draw the house of the code as it is."""
    sys.path.insert(0, str(ROOT / "tests"))
    from test_architecture import FLOORS

    return house([sorted(floor) for floor in reversed(FLOORS)])


if __name__ == "__main__":
    TARGET.write_text(drawn())

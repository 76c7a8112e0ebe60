"""Figure 1 with the shapes of a ViT-B/16: `python docs/tools/model.py` draws docs/model.svg from its configuration."""

from pathlib import Path

from vitrail.config import PatchStem, ViTConfig, parse

TARGET = Path(__file__).parents[2] / "docs/model.svg"
PANES = ("#244f9c", "#b0204e", "#c98a1b", "#1f7a55", "#4568b8", "#cc5a2e", "#66398f")
INK, PAPER, GOLD = "#22232b", "#fbfaf6", "#e0a92b"
WIDTH, HEIGHT, MIDDLE = 980, 330, 150
SHOWN = 4  # rows and columns of patches that are drawn


def pane(left: float, top: float, side: float, color: str) -> str:
    """Draw a patch."""
    return f'<rect x="{left:g}" y="{top:g}" width="{side:g}" height="{side:g}" rx="2" fill="{color}"/>'


def color_of(row: int, col: int) -> str:
    """Give a patch's color."""
    return PANES[(3 * row + 2 * col) % len(PANES)]


def words(center: float, top: float, *lines: str, size: float = 13, strong: bool = False, ink: str = INK) -> list[str]:
    """Write lines below each other, around a middle."""
    style = f'font-size="{size:g}" text-anchor="middle" fill="{ink}"' + ' font-weight="600"' * strong
    return [
        f'<text x="{center:g}" y="{top + 17 * number:g}" {style}>{line}</text>' for number, line in enumerate(lines)
    ]


def arrow(left: float, right: float) -> str:
    """Draw an arrow to the right, at the middle."""
    return (
        f'<path d="M {left:g} {MIDDLE} H {right - 7:g}" stroke="{INK}" stroke-width="1.5"/>'
        f'<path d="M {right:g} {MIDDLE} l -8 -4.5 v 9 Z" fill="{INK}"/>'
    )


def box(left: float, top: float, width: float, height: float, color: str, *lines: str) -> list[str]:
    """Draw a step with its words."""
    first = top + height / 2 + 5 - 8.5 * (len(lines) - 1)
    return [
        f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="4" fill="{color}"/>',
        *words(left + width / 2, first, *lines, ink="#fff"),
    ]


def tokens(left: float, side: float, *, first: bool) -> list[str]:
    """Draw a column of tokens, the class token above them."""
    top = MIDDLE - 6 * (side + 3)
    parts = [
        pane(left, top + (side + 3) * (1 + number), side, color_of(*divmod(number, SHOWN))) for number in range(10)
    ]
    parts += words(left + side / 2, top + (side + 3) * 11 + 9, "⋮", size=14)
    return [*parts, pane(left, top, side, GOLD)] if first else parts


def model(config: ViTConfig) -> str:
    """Draw a ViT."""
    assert isinstance(config.stem, PatchStem)
    side, patch, width = config.image_size[0], config.stem.patch, config.width
    count = config.stem.grid(*config.image_size)[0] ** 2
    picture = [
        pane(24 + 27 * col, 96 + 27 * row, 27, color_of(row, col)) for row in range(SHOWN) for col in range(SHOWN)
    ]
    inner, beside = 466, f'V 78 H {{:g}} V 132" fill="none" stroke="{INK}" stroke-width="1.3"/>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, sans-serif" role="img">',
        f"<title>A ViT-B/16 from image to classes, with the shape at every step</title>"
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{PAPER}"/>',
        *picture,
        *words(78, 240, "image", f"{config.channels} x {side} x {side}", strong=False),
        arrow(140, 172),
        *tokens(182, 15, first=False),
        *words(190, 292, "patches", f"{count} x {patch * patch * config.channels}"),
        arrow(208, 240),
        *box(244, 96, 46, 108, "#4568b8", "E"),
        arrow(294, 330),
        *words(312, MIDDLE - 12, "+ class", size=11),
        *tokens(340, 15, first=True),
        *words(348, 292, "tokens + positions", f"{count + 1} x {width}"),
        *words(300, 34, "equation 1", strong=True),
        arrow(366, 440),
        f'<rect x="446" y="52" width="286" height="206" rx="8" fill="none" stroke="{INK}" stroke-dasharray="5 4"/>',
        *words(589, 34, f"equations 2, 3: {config.depth} blocks", strong=True),
        *box(inner, 116, 40, 68, "#66398f", "LN"),
        *box(inner + 46, 116, 68, 68, "#b0204e", "MSA", f"{config.heads} heads"),
        *words(inner + 127, MIDDLE + 6, "⊕", size=22),
        *box(inner + 142, 116, 40, 68, "#66398f", "LN"),
        *box(inner + 188, 116, 40, 68, "#cc5a2e", "MLP"),
        *words(inner + 243, MIDDLE + 6, "⊕", size=22),
        f'<path d="M {inner - 10} {MIDDLE} ' + beside.format(inner + 127),
        f'<path d="M {inner + 136} {MIDDLE} ' + beside.format(inner + 243),
        *words(589, 212, f"MLP: {width} to {config.mlp_width}, one GELU, to {width}", size=12),
        *words(589, 232, "attention: equations 5 to 8", size=12),
        *words(589, 292, "tokens", f"{count + 1} x {width}"),
        arrow(736, 770),
        *box(776, 116, 40, 68, "#66398f", "LN"),
        *words(824, 34, "equation 4", strong=True),
        arrow(820, 850),
        pane(856, MIDDLE - 9, 18, GOLD),
        *words(865, 190, "class token", f"{width}", size=12),
        arrow(880, 908),
        *box(912, 96, 50, 108, "#1f7a55", "head"),
        *words(937, 240, "classes", f"{config.classes:,}"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def drawn() -> str:
    """Draw the ViT-B/16."""
    config = parse("ViT-B/16")
    assert isinstance(config, ViTConfig)
    return model(config)


if __name__ == "__main__":
    TARGET.write_text(drawn())

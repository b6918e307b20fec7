"""Engines by name: how the clients' work is done. All give what `loop` gives."""

from protofed.engines.engine import Engine
from protofed.engines.loop import Loop
from protofed.engines.stacked import Stacked

ENGINES: dict[str, type[Engine]] = {"loop": Loop, "stacked": Stacked}

"""What is made of a state once and kept for as long as it holds."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

ALWAYS = ("numbers", "starts")  # depend on nothing that a step changes


@dataclass
class Kept:
    """Tensors by name. Those that may no longer hold are set aside until it is known whether they do."""

    now: dict[str, Tensor] = field(default_factory=dict)
    aside: dict[str, Tensor] = field(default_factory=dict)

    def get(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        if name not in self.now:
            self.now[name] = make()
        return self.now[name]

    def set_aside_(self, *but: str) -> None:
        """To be called when rows may have moved, been cut or ended."""
        stays = {name: self.now[name] for name in (*ALWAYS, *but) if name in self.now}
        self.aside, self.now = self.aside or self.now, stays

    def settle_(self, holds: bool) -> None:
        """holds: what was set aside is right again, because no row moved, was cut or ended."""
        self.now = self.aside | self.now if holds else self.now
        self.aside = {}

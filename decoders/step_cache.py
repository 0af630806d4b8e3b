"""What is derived from a state once, and serves for as long as it holds."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

ALWAYS = ("numbers", "starts")  # depend on nothing that a step changes


@dataclass
class StepCache:
    """Tensors by name. Those that may no longer hold are invalidated until it is known whether they do."""

    valid: dict[str, Tensor] = field(default_factory=dict)
    invalid: dict[str, Tensor] = field(default_factory=dict)

    def get(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        if name not in self.valid:
            self.valid[name] = make()
        return self.valid[name]

    def invalidate_(self, *but: str) -> None:
        """To be called when rows may have moved, been cut or ended."""
        stays = {name: self.valid[name] for name in (*ALWAYS, *but) if name in self.valid}
        self.invalid, self.valid = self.invalid or self.valid, stays

    def restore_(self, holds: bool) -> None:
        """holds: what was invalidated is right again, because no row moved, was cut or ended."""
        self.valid = self.invalid | self.valid if holds else self.valid
        self.invalid = {}

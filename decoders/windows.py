"""Where the windows of a decode call lie, and which of their columns wait. All is made when it is first asked for."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm.spec import ModelSpec


class Windows:
    """What follows from the canvas and from where each row stands. It is kept until one of them changes.

    The fields are those of `DecodeState`.
    """

    spec: ModelSpec
    canvas: Tensor
    free: Tensor
    prompt_len: Tensor
    tail: Tensor
    start: Tensor
    end: Tensor
    done: Tensor
    window: int
    _kept: dict[str, Tensor]
    _before: dict[str, Tensor]
    _numbers: Tensor | None

    @property
    def columns(self) -> Int[Tensor, "B W"]:
        """Canvas columns of each row's window; those of a row that is done stay inside the canvas."""

        def columns() -> Tensor:
            offsets = torch.arange(self.window, device=self.canvas.device)
            return self.start.clamp(max=self.canvas.shape[1] - self.window)[:, None] + offsets

        return self._keep("columns", columns)

    @property
    def tokens(self) -> Int[Tensor, "B W"]:
        """The ids in the windows."""
        return self._keep("tokens", lambda: self.canvas.gather(1, self.columns))

    @property
    def blank(self) -> Bool[Tensor, "B W"]:
        """Positions of the windows that hold MASK."""
        return self._keep("blank", lambda: self.tokens == self.spec.mask_id)

    @property
    def live(self) -> Bool[Tensor, "B T"]:
        """Columns that may be written."""

        if self._numbers is None:
            self._numbers = torch.arange(self.canvas.shape[1], device=self.canvas.device)
        return self._keep("live", lambda: self.free & (self._numbers < self.end[:, None]))

    @property
    def open(self) -> Bool[Tensor, "B W"]:
        """Positions of the windows that may be written, in rows that are not done."""
        return self._keep("open", lambda: self.live.gather(1, self.columns) & ~self.done[:, None])

    @property
    def inside(self) -> Bool[Tensor, "B W"]:
        """Positions of the windows that are response before the live end, in rows that are not done."""

        def inside() -> Tensor:
            within = (self.columns >= self.prompt_len[:, None]) & (self.columns < self.end[:, None])
            return within & ~self.done[:, None]

        return self._keep("inside", inside)

    @property
    def may_end(self) -> Bool[Tensor, "B W"]:
        """Positions of `inside` at which an EOS ends the row: those behind its fixed columns."""
        return self._keep("may_end", lambda: self.inside & (self.columns >= self.tail[:, None]))

    @property
    def pending(self) -> Bool[Tensor, "B T"]:
        """Columns that are still to be filled."""
        return self._keep("pending", lambda: self.live & (self.canvas == self.spec.mask_id))

    def _keep(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def _set_aside_(self, *but: str) -> None:
        """To be called when rows may have moved, been cut or ended. What was kept is right again if none was."""
        stays = {name: self._kept[name] for name in but if name in self._kept}
        self._before, self._kept = self._before or self._kept, stays

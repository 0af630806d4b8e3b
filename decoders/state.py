"""The state of one decode call: the canvas, and where each row is. No other file slices or moves windows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from decoders.constraints.chain import Window
from decoders.constraints.held import Constraints
from decoders.logits import Logits
from decoders.noise import Noise, noise_tokens
from decoders.step_cache import StepCache
from decoders.types import NEVER as NEVER, Update, View
from dllm.plan import Plan, Progress, padding_on
from dllm.soft import Soft, SoftInput
from dllm.spec import ModelSpec


@dataclass
class DecodeState:
    """B rows over a canvas of T columns, padded on the right. A row's window is `window` columns from `start`.

    Windows of a block-causal model lie on the model's grid, so that the first may begin inside the prompt.

    spec: the model's special ids.
    canvas: token ids.
    free: columns that a decoder may write. Prompts, fixed tokens and padding are not free.
    prompt_len, gen_len: columns of the prompt and of the response.
    tail: the column after the row's last fixed one that is no EOS. No EOS before it ends the row.
    start, previous: first column of the window, and of the window before (0 in the first).
    end: the live end (exclusive). Stop rules move it to the left.
    step: forwards made in this window.
    done: rows that need no forward.
    origin: first column of the row's first window.
    seeds: of the row's random numbers.
    nfe, budget: forwards of the row so far, and at most.
    queried: columns computed for the row so far.
    request: which of the prompts of the call the row is.
    committed_at: the forward (from 0) that wrote a column last, be it MASK; NEVER where none did.
    fresh: columns that the last forward wrote.
    window: columns per window.
    soft: what positions of the windows show the model.
    shown: and on what token, for a model with `spec.noise`.
    reference: the canvas of another decode, for rules that ask for it.
    eos_ahead: probability of EOS at masked columns where the last forward expected one, else 0. For stop rules that
        ask.
    sight: the first column that the next forward does not see. None: it sees all.
    accepted: window positions that the rule's filter accepted. None: it has no filter.
    entry: the state of the row's automaton before the window.
    constraints: of the call. None: it has none.

    `columns`, `pending` and the like are kept (`StepCache`). Whether a row moved, was cut or ended, `progress` sees.
    """

    spec: ModelSpec
    canvas: Int[Tensor, "B T"]
    free: Bool[Tensor, "B T"]
    prompt_len: Int[Tensor, " B"]
    gen_len: Int[Tensor, " B"]
    tail: Int[Tensor, " B"]
    start: Int[Tensor, " B"]
    previous: Int[Tensor, " B"]
    end: Int[Tensor, " B"]
    step: Int[Tensor, " B"]
    done: Bool[Tensor, " B"]
    origin: Int[Tensor, " B"]
    seeds: Int[Tensor, " B"]
    nfe: Int[Tensor, " B"]
    budget: Int[Tensor, " B"]
    queried: Int[Tensor, " B"]
    request: Int[Tensor, " B"]
    committed_at: Int[Tensor, "B T"]
    fresh: Bool[Tensor, "B T"]
    window: int
    soft: Soft | None = None
    shown: Int[Tensor, "B W"] | None = None
    reference: Int[Tensor, "B T"] | None = None
    eos_ahead: Float[Tensor, "B T"] | None = None
    sight: Int[Tensor, " B"] | None = None
    accepted: Bool[Tensor, "B W"] | None = None
    entry: Int[Tensor, " B"] | None = None
    constraints: Constraints | None = None
    _step_cache: StepCache = field(default_factory=StepCache, init=False, repr=False)
    _stood: Int[np.ndarray, "B 3"] | None = field(default=None, init=False, repr=False)

    @classmethod
    def begin(
        cls,
        spec: ModelSpec,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        block_len: int,
        seeds: Sequence[int],
        budgets: Sequence[int],
        device: torch.device,
    ) -> "DecodeState":
        """The state before the first step. responses: MASK where a token is wanted; any other id is fixed."""
        prompt_len = torch.tensor([len(prompt) for prompt in prompts])
        gen_len = torch.tensor([len(response) for response in responses])
        start = spec.window_start(prompt_len, prompt_len, block_len)
        end = prompt_len + gen_len
        # every window, also a last one cut short by `end`, lies inside the canvas
        num_windows = (end - start + block_len - 1) // block_len
        length = int((start + num_windows * block_len).max())
        canvas = torch.full((len(prompts), length), spec.pad_id)
        for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            canvas[row, : int(end[row])] = torch.tensor([*prompt, *response])
        columns = torch.arange(length)
        response = (columns >= prompt_len[:, None]) & (columns < end[:, None])
        free = response & (canvas == spec.mask_id)
        tail = torch.where(response & ~free & ~spec.is_eos(canvas), columns + 1, prompt_len[:, None]).amax(1)
        zeros = torch.zeros(len(prompts), dtype=torch.long, device=device)
        state = cls(
            spec=spec,
            canvas=canvas.to(device),
            free=free.to(device),
            prompt_len=prompt_len.to(device),
            gen_len=gen_len.to(device),
            tail=tail.to(device),
            start=start.to(device),
            previous=zeros.clone(),
            end=end.to(device),
            step=zeros.clone(),
            done=zeros.bool(),
            origin=start.to(device),
            seeds=torch.tensor(seeds, dtype=torch.long, device=device),
            nfe=zeros.clone(),
            budget=torch.tensor(budgets, dtype=torch.long, device=device),
            queried=zeros.clone(),
            request=torch.arange(len(prompts), device=device),
            committed_at=torch.full_like(canvas, NEVER, device=device),
            fresh=torch.zeros_like(free, device=device),
            window=block_len,
        )
        state.start = state.origin = state._next_start()
        return state

    def take(self, rows: Sequence[int], device: torch.device) -> "DecodeState":
        """The state of some of the rows, in their order; itself, if they are all of it."""
        if device == self.canvas.device and list(rows) == list(range(len(self.done))):
            return self
        index = torch.tensor(rows, device=self.canvas.device)
        soft = None if self.soft is None else self.soft[index]
        rows_of = {name: value.index_select(0, index).to(device) for name, value in self.by_row()}
        return replace(self, soft=soft, **rows_of)

    def put_(self, slots: Int[Tensor, " N"], rows: "DecodeState") -> None:
        """Replaces the rows in `slots` by others of the same width, before their first step."""
        for name, value in rows.by_row():
            mine = vars(self)[name]
            setattr(self, name, value if len(value) == len(mine) else mine.index_copy(0, slots, value))
        if self.sight is not None:
            self.sight = self.sight.index_fill(0, slots, self.canvas.shape[1])
        self._step_cache = StepCache()

    def by_row(self) -> Iterator[tuple[str, Tensor]]:
        """Names and values of the fields that have a line for each row."""
        return ((n, v) for n, v in vars(self).items() if isinstance(v, Tensor) and not n.startswith("_"))

    def progress(self, width: int | None = None) -> Progress:
        """A copy on the host. It is the one transfer of a step. width: of the windows, None for one block each."""
        numbers = (self.start, self.visible_end, self.done, self.prompt_len, self.step, self.origin, self.previous)
        packed = torch.cat([torch.stack(numbers, 1), self.pending, self.fresh], 1).cpu().numpy()
        start, end, done, prompt_len, step, origin, previous = packed[:, : len(numbers)].T
        masked, fresh = np.split(packed[:, len(numbers) :] > 0, 2, 1)
        stands = packed[:, :3] if self.sight is None else None
        self._step_cache.restore_(
            stands is not None and self._stood is not None and np.array_equal(stands, self._stood)
        )
        self._stood = stands
        first, padding = start == origin, padding_on(self.canvas.device)
        return Progress(
            prompt_len, start, end, step, first, previous, done > 0, masked, fresh, width or self.window, padding
        )

    @property
    def _columns(self) -> Int[Tensor, " T"]:
        return self._step_cache.get("numbers", lambda: torch.arange(self.canvas.shape[1], device=self.canvas.device))

    @property
    def limit(self) -> Int[Tensor, "B 1"]:
        """`end` as a column."""
        return self._step_cache.get("limit", lambda: self.end[:, None])

    @property
    def visible_end(self) -> Int[Tensor, " B"]:
        """The first column that the next forward does not see."""
        return self.end if self.sight is None else torch.minimum(self.end, self.sight)

    @property
    def awake(self) -> Bool[Tensor, " B"]:
        """Rows that are not done."""
        return self._step_cache.get("awake", lambda: ~self.done)

    @property
    def columns(self) -> Int[Tensor, "B W"]:
        """Canvas columns of each row's window; those of a row that is done stay inside the canvas."""

        def columns() -> Tensor:
            offsets = torch.arange(self.window, device=self.canvas.device)
            return self.start.clamp(max=self.canvas.shape[1] - self.window)[:, None] + offsets

        return self._step_cache.get("columns", columns)

    @property
    def tokens(self) -> Int[Tensor, "B W"]:
        """The ids in the windows."""
        return self._step_cache.get("tokens", lambda: self.canvas.gather(1, self.columns))

    @property
    def behind(self) -> Int[Tensor, "B W"]:
        """The columns after those of the windows."""
        return self._step_cache.get("behind", lambda: self.columns + 1)

    @property
    def blank(self) -> Bool[Tensor, "B W"]:
        """Positions of the windows that hold MASK."""
        return self._step_cache.get("blank", lambda: self.tokens == self.spec.mask_id)

    @property
    def live(self) -> Bool[Tensor, "B T"]:
        """Columns that may be written."""
        return self._step_cache.get("live", lambda: self.free & (self._columns < self.limit))

    @property
    def open(self) -> Bool[Tensor, "B W"]:
        """Positions of the windows that may be written, in rows that are not done."""
        return self._step_cache.get("open", lambda: self.live.gather(1, self.columns) & self.awake[:, None])

    @property
    def inside(self) -> Bool[Tensor, "B W"]:
        """Positions of the windows that are response before the live end, in rows that are not done."""

        def inside() -> Tensor:
            within = (self.columns >= self.prompt_len[:, None]) & (self.columns < self.end[:, None])
            return within & self.awake[:, None]

        return self._step_cache.get("inside", inside)

    @property
    def may_end(self) -> Bool[Tensor, "B W"]:
        """Positions of `inside` at which an EOS ends the row: those after its fixed columns."""
        return self._step_cache.get("may_end", lambda: self.inside & (self.columns >= self.tail[:, None]))

    @property
    def pending(self) -> Bool[Tensor, "B T"]:
        """Columns that are still to be filled."""
        return self._step_cache.get("pending", lambda: self.live & (self.canvas == self.spec.mask_id))

    @property
    def finished(self) -> Bool[Tensor, " B"]:
        """Rows that have been filled up to their live end."""
        return ~self.pending.any(1)

    @property
    def seen(self) -> Int[Tensor, "B T"]:
        """The canvas that a model is given. One with noise never sees MASK: columns to be filled show what the decoder
        said of this window, else new noise."""
        if not self.spec.noise:
            return self.canvas
        noise, vocab = Noise(self.seeds, self.nfe), self.spec.noise
        shown = noise_tokens(noise, self.window, vocab, "canvas")
        if self.shown is not None:
            shown = torch.where((self.step > 0)[:, None], self.shown, shown)
        beyond = noise_tokens(noise, self.canvas.shape[1], vocab, "beyond")
        noisy = beyond.scatter(1, self.columns, shown)
        return torch.where(self.canvas == self.spec.mask_id, noisy, self.canvas)

    @property
    def soft_input(self) -> SoftInput | None:
        """The soft step, for rows that are still in the window it was made for. A model with noise is always told its
        window."""
        columns, soft = self.columns, self.soft
        if soft is None and not self.spec.noise:
            return None
        where, stays = self.pending.gather(1, columns), (self.step > 0)[:, None]
        if soft is None or soft.at == "masked":
            return SoftInput(soft, columns, where & stays)
        return SoftInput(soft, columns, self.live.gather(1, columns) & ~where & stays)

    def view(self, logits: Logits, shadow: Float[Tensor, "B W"] | None = None, partial: Sequence[Plan] = ()) -> View:
        """What the decoder may see of this step. partial: plans whose rows may decide only the columns that the plan
        wants."""
        columns, tokens, live = self.columns, self.tokens, self.open
        masked = live & self.blank
        for plan in [plan.to(masked.device) for plan in partial]:
            assert plan.want is not None
            masked[plan.rows] &= (columns[plan.rows, :, None] == plan.want[:, None]).any(2)
        noise = Noise(self.seeds, self.nfe)
        reference = None if self.reference is None else self.reference.gather(1, columns)
        start = self._step_cache.get("in response", lambda: self.start - self.prompt_len)
        window = None if self.constraints is None else self.held(columns, self.start + self.window)
        return View(tokens, masked, live, logits, self.step, noise, self.spec, start, shadow, reference, window)

    def held(self, columns: Int[Tensor, "B N"], behind: Int[Tensor, " B"]) -> Window | None:
        """What constraints let rows write into these columns from the window's first on, before column `behind`."""
        if self.constraints is None or self.entry is None:
            return None
        where = (self.entry, self.request, self.canvas, columns, self.prompt_len, behind, self.end)
        return self.constraints.window(*where, self.spec.mask_id)

    def settle_(self, progress: Progress, states: int) -> None:
        """Moves `entry` of rows that have entered a window to its first column. progress: where they stand, each of
        them in so many states."""
        if self.constraints is None or self.entry is None:
            return
        stands = (progress.prompt_len, progress.previous, progress.start, progress.step, progress.done)
        prompt_len, previous, start, step, done = (numbers[::states] for numbers in stands)
        columns = np.where((step == 0) & ~done, start - np.maximum(prompt_len, previous), 0).max(initial=0)
        begin = torch.maximum(self.prompt_len, self.previous)
        end = torch.where(self.step == 0, self.start, begin)
        self.entry = self.constraints.follow(self.entry, self.request, self.canvas, begin, end, int(columns))

    def expect_eos_(
        self, rows: Int[Tensor, " R"], columns: Int[Tensor, "R N"], logits: Logits, where: Bool[Tensor, "R N"]
    ) -> None:
        """Notes the probability of EOS at those columns of `where` in which EOS is the likeliest token."""
        if self.eos_ahead is None:
            self.eos_ahead = torch.zeros(self.canvas.shape, dtype=torch.float64, device=self.canvas.device)
        prob = torch.where(self.spec.is_eos(logits.top[1]) & where, logits.top_prob(), 0)
        self.eos_ahead[rows[:, None], columns] = prob

    def expect_(self, responses: Sequence[Sequence[int]]) -> None:
        """Keeps other responses to the same prompts as the reference. After their last token is EOS."""
        self.reference = torch.full_like(self.canvas, self.spec.eos_ids[0])
        for row, (start, tokens) in enumerate(zip(self.prompt_len.tolist(), responses, strict=True)):
            self.reference[row, start : start + len(tokens)] = torch.tensor(tokens, dtype=torch.long)

    def apply_(self, tokens: Int[Tensor, "B W"], live: Bool[Tensor, "B W"], update: Update) -> None:
        """Writes an update over the window's tokens where they are live, and keeps its soft step."""
        columns, write = self.columns, update.write & live
        written = torch.where(write, update.tokens, tokens)
        canvas = self.canvas.scatter(1, columns, written)
        self.canvas, self.fresh = canvas, canvas != self.canvas
        written_at = self._step_cache.get("written_at", lambda: self.committed_at.gather(1, columns))
        written_at = torch.where(write, self.nfe[:, None] - 1, written_at)
        self.committed_at.scatter_(1, columns, written_at)
        self._step_cache.valid |= {"tokens": written, "blank": written == self.spec.mask_id, "written_at": written_at}
        self._step_cache.valid.pop("pending", None)
        self.soft, self.shown, self.accepted = update.soft, update.shown, update.accepted
        self.sight = None if update.sight is None else self.start + update.sight

    def cut_(self, end: Int[Tensor, " B"], hold: Bool[Tensor, " B"] | None = None) -> None:
        """Lowers the live end of rows that are not held."""
        if end is not self.end:
            self.end = end if hold is None else torch.where(hold, self.end, end)
            self._step_cache.invalidate_()

    def advance_(self, held: Int[Tensor, " B"] | None = None) -> None:
        """Moves rows whose window is full to the next window with something to fill, and not past the one at column
        `held`. Rows that have reached their live end or spent their budget are done."""
        start = self._next_start()
        start = start if held is None else torch.minimum(held, start)
        leaves = start != self.start
        if self.sight is not None:
            self.sight = torch.where(leaves, self.canvas.shape[1], self.sight)
        self.previous = torch.where(leaves, self.start, self.previous)
        self.start, self.step = start, torch.where(leaves, 0, self.step + 1)
        self.done = (start >= self.end) | (self.nfe >= self.budget)
        self._step_cache.invalidate_("live", "pending", "limit")

    def _next_start(self) -> Int[Tensor, " B"]:
        """The start of the first window with something to fill, or the live end where there is none. No column before
        the present window waits.

        For windows of 4 columns from start 4, with masks (_) in columns 14 and 15 only, it is 12:

            column  4  5  6  7 |  8  9 10 11 | 12 13 14 15
                    A  B  C  D |  E  F  G  H |  I  J  _  _
        """

        def starts(origin: Tensor) -> Tensor:
            return origin + (self._columns - origin) // self.window * self.window

        of_columns = self._step_cache.get("starts", lambda: starts(self.origin[:, None]))
        return torch.where(self.pending, of_columns, self.limit).amin(1)

"""A transformer's forwards as CUDA graphs: recorded once for each shape, then replayed in one call. An eager forward of
32 layers is 1,400 calls, for which a GPU waits longer than it computes (docs/performance.md)."""

import warnings
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from dllm.kv import ColumnCache
from dllm.layers import hidden_states

MOST = 32  # recordings of a cache, each of which holds what a forward needs
Work = Callable[[], Tensor]
Recorded = tuple[Callable[[], object], Tensor]  # what repeats the work, and where its result then is


def on_gpu(work: Work) -> Recorded:
    """Records work as a CUDA graph, after one run in which kernels are chosen. Raises RuntimeError for work that asks
    the host for anything."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph.replay, result


class Graphs:
    """`hidden_states` of a backbone, for the few shapes in which a loop with fixed shapes calls it.

    A recording reads and writes where it did when it was made. So inputs are copied into tensors of its own, the result
    holds until the next call, and each `ColumnCache` has recordings of its own, which go with it. Shapes beyond the
    first `MOST` are not recorded.
    """

    def __init__(self, backbone: PreTrainedModel, name: str, record: Callable[[Work], Recorded] = on_gpu) -> None:
        self._backbone, self._name, self._record, self._fails = backbone, name, record, False
        self._without_kv = dict[tuple, tuple[list[Tensor], Recorded]]()
        self._of_kv = WeakKeyDictionary[ColumnCache, dict[tuple, tuple[list[Tensor], Recorded]]]()

    def __call__(
        self,
        embeds: Float[Tensor, "R Q D"],
        mask: Bool[Tensor, "R 1 Q K"],
        positions: Int[Tensor, "... R Q"],
        kv: ColumnCache | None,
    ) -> Float[Tensor, "R Q D"]:
        if self._fails or torch.is_grad_enabled():
            return hidden_states(self._backbone, embeds, mask, positions, kv)
        places = [] if kv is None else [kv.places] if kv.rows is None else [kv.places, kv.rows]
        inputs = [embeds, mask, positions, *places]
        known = self._without_kv if kv is None else self._of_kv.setdefault(kv, {})
        key = tuple(tensor.shape for tensor in inputs)
        if key not in known and len(known) == MOST:
            return hidden_states(self._backbone, embeds, mask, positions, kv)
        if key not in known:
            with torch.inference_mode(False), torch.no_grad():
                own = [tensor.clone() for tensor in inputs]
            if kv is not None:
                kv.places, kv.rows = own[3], None if kv.rows is None else own[4]
            try:
                known[key] = own, self._record(lambda: hidden_states(self._backbone, own[0], own[1], own[2], kv))
            except RuntimeError as error:
                self._fails = True
                what = f"CUDA graphs are not for model {self._name!r}: {str(error).splitlines()[0]}; it runs without"
                warnings.warn(what, stacklevel=2)
                return hidden_states(self._backbone, embeds, mask, positions, kv)
        own, (replay, result) = known[key]
        for place, tensor in zip(own, inputs, strict=True):
            place.copy_(tensor)
        replay()
        return result

"""A device without hardware: its tensors lie in the CPU's memory and behave as if they lay elsewhere.

Within `other_device()`, tensors on `DEVICE` do not mix with others in one operation, and the times that the host waits
for it are counted. The arithmetic is the CPU's own.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from decoders.testing import waits_for_device

DEVICE = torch.device("privateuseone", 0)


@contextmanager
def other_device() -> Iterator["Device"]:
    """The device, for as long as the context lasts."""
    _register()
    torch._C._set_only_lift_cpu_tensors(True)  # so that torch.tensor(..., device=DEVICE) comes as a transfer
    try:
        with Device() as device:
            yield device
    finally:
        torch._C._set_only_lift_cpu_tensors(False)


class Device(TorchDispatchMode):
    """syncs: how often the host waited for values, by operation. uploads: how often it waited for values to arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs, self.uploads = Counter[str](), Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), func.overloadpacket.__name__
        if func._can_decompose() and name != "scaled_dot_product_attention":  # a device has its own kernels of that
            with self:
                return func.decompose(*args, **kwargs)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        ours = {id(tensor.held): tensor for tensor in given if isinstance(tensor, OnDevice)}
        wanted = kwargs.get("device")
        lands = bool(ours) if wanted is None else wanted.type == DEVICE.type
        if name in ("_to_copy", "copy_"):
            leaves, lands = isinstance(args[-1], OnDevice), lands if name == "_to_copy" else args[0].device == DEVICE
            self._count(self.syncs, name, leaves and not lands)
            self._count(self.uploads, name, lands and not leaves and not kwargs.get("non_blocking"))
        elif ours:
            # a number on the host may be an operand, as on a GPU
            others = [tuple(tensor.shape) for tensor in given if not isinstance(tensor, OnDevice) and tensor.ndim]
            if others:
                raise RuntimeError(f"{func} mixes tensors of the device with one of shape {others[0]} on the CPU")
            self._count(self.syncs, name, waits_for_device(func, args))
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
        args, kwargs = tree_map_only(OnDevice, lambda tensor: tensor.held, (args, kwargs))
        result = func(*args, **kwargs)
        if not lands:
            return result
        return tree_map_only(Tensor, lambda made: ours[id(made)] if id(made) in ours else OnDevice(made), result)

    @staticmethod
    def _count(counter: Counter[str], name: str, happens: bool) -> None:
        if happens:
            counter[name] += 1


class OnDevice(Tensor):
    """A tensor on the device. held: what it stands for."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        shape = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        self = Tensor._make_wrapper_subclass(cls, held.shape, **shape, device=DEVICE)
        self.held = held
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on a tensor of the device, outside `other_device()`")

    def tolist(self) -> Any:
        return self.cpu().tolist()


@cache
def _register() -> None:
    _setup_privateuseone_for_python_backend()

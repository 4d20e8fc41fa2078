"""A device that is not there: its tensors live on the CPU, and what a GPU would have to wait for is counted.

The device calls itself "meta", because PyTorch lets anyone create tensors there. Every operation is carried out on the
CPU tensors inside. So it needs no GPU to find out how often the host waits for one, and which tensors one would hold.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
# Their result, or its shape, depends on numbers that only the device knows.
WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "equal",
    "bincount",
    "histc",
}


class OnDevice(Tensor):
    """A tensor of the device."""

    inside: Tensor

    @staticmethod
    def __new__(cls, inside):
        outside = Tensor._make_wrapper_subclass(
            cls,
            inside.shape,
            strides=inside.stride(),
            storage_offset=inside.storage_offset(),
            dtype=inside.dtype,
            device=DEVICE,
        )
        outside.inside = inside
        return outside

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {}, None)


class FakeDevice(TorchDispatchMode):
    """Counts in `waits` what the host would wait for, and lists in `dtypes` the types of all tensors on the device."""

    def __init__(self):
        super().__init__()
        self.waits = []
        self.dtypes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {}, self)


def _run(func, args, kwargs, seen):
    flat, _ = tree_flatten((args, kwargs))
    kwargs = dict(kwargs)
    target = kwargs.get("device")
    here = [each for each in flat if isinstance(each, OnDevice)]
    others = [each for each in flat if isinstance(each, Tensor) and not isinstance(each, OnDevice)]
    name = func.overloadpacket.__name__
    if target is not None:
        kwargs["device"] = torch.device("cpu")
    moved = name in ("_to_copy", "copy_") and (
        (target is not None and bool(here) != (torch.device(target) == DEVICE)) or (here and others)
    )
    indexed = name in ("index", "index_put", "index_put_", "_index_put_impl_")  # PyTorch moves indices by itself
    if here and others and not moved and not indexed and any(other.ndim for other in others):
        raise AssertionError(f"{func} mixes tensors of the device with tensors of the CPU")
    inside_args, inside_kwargs = tree_map(
        lambda each: each.inside if isinstance(each, OnDevice) else each, (args, kwargs)
    )
    result = func(*inside_args, **inside_kwargs)
    if seen is not None:
        masks = indexed and (others or any(each is not None and each.dtype is torch.bool for each in args[1]))
        endless = name == "repeat_interleave" and kwargs.get("output_size") is None
        if (here and (name in WAITING or masks or endless)) or moved:
            seen.waits.append(name)
    stays = torch.device(target) == DEVICE if target is not None else bool(here)
    if name == "_local_scalar_dense" or not stays:
        return result
    by_inside = {id(each.inside): each for each in here}  # operations in place return what they were given

    def wrapped(each):
        if not isinstance(each, Tensor):
            return each
        if seen is not None:
            seen.dtypes.add(each.dtype)
        return by_inside[id(each)] if id(each) in by_inside else OnDevice(each)

    return tree_map(wrapped, result)

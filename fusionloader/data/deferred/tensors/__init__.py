"""Tensors of decoded images whose pixels are made when they are needed.

**How it works.** In a worker, a decoder of torchvision or torchcodec returns a ``DeferredTensor``:
a tensor without memory, with the shape, strides and dtype of the library's. Slices, flips and
conversions of torch, and resizes of torchvision's v2, return another one with one operation more.
A tensor that is in the sample is made in its row, region of interest first.

**Why it is right.** A ``DeferredTensor`` is made of torch's two hooks: ``__torch_function__`` for
calls from Python and ``__torch_dispatch__`` for those from C++. All that is not recorded makes the
tensor first: the same Python object gets memory, and is a plain ``torch.Tensor`` from then on.
Tensors that would share memory share a ``TensorMemory``. If one of them is made, all of it is made,
and the others become views of it before they are used again.

Modules:
    deferred_tensor: tensors without memory, and how they are made.
    tensor_view: what they show, and the memory that they will lie in.
    level_tables: what conversions make of the 256 levels.
    recorded: the recorded functions of torch and torchvision.
"""

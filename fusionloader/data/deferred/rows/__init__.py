"""Sample tensors that are made at their place in the batch, so that collating copies nothing.

What follows is about workers that make whole batches; ``sample_rows`` is for the others.

**How it works.** A worker that makes whole batches collates them in shared memory. The row of a
tensor in its batch is not known when the tensor is made, since user code may do anything with it.
But batches are alike, so the rows are predicted. The tensors of deferred images are numbered. A
collated batch shows which of the tensors made since the batch before it are in it, and in which
rows. The next tensors are made in the same rows of a new slot. When they are collated, the batch is
a tensor over all rows. Only tensors that lie elsewhere are copied.

**Why it is right.** A wrong prediction does no harm: collating checks the address of each tensor,
and never writes to a row that holds another one. The batch is stacked by torch then. Only default
collating is replaced, that of torch and of WebDataset's ``batched``, and no user code runs during
it. After collating, no tensor but the batch may refer to the rows, or a change of one would change
the other. If a tensor still does, the batch becomes a copy, and later tensors at the same position
get memory of their own. This happens with a generator that keeps the last sample that it has
yielded, and with a dataset that yields its samples again.

Modules:
    layout: predicts rows from the batches before; has no memory.
    region: the rows of one batch.
    memory: the tensors of samples and batches.
    sample_rows: the same for workers that fill the rows of a batch together.
"""

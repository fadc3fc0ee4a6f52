"""Samples' tensors that are made where the batch will have them: collating copies nothing then.

**How it works.** A worker that makes whole batches collates them in shared memory. Which row of a
batch a tensor will be is not known when it is made, since user code does with it what it likes. But
batches are alike. So the tensors of deferred images are numbered. A collated batch shows which of
those that were made since the one before are in it, and where. The next ones are made at these
places, in rows of a slot. When they are collated, the batch is a tensor over all rows; only what
lies elsewhere is copied.

**Why it is right.** Whatever was expected, collating checks the address of each tensor. A row that
holds something else is never written to; the batch is stacked as torch does it then. Only default
collating is done like this, torch's own or that of WebDataset's ``batched``; no user code runs till
it has ended. From then on no tensor but the batch may look into the rows, or a change of the one
would be a change of the other. Where a tensor still does, the batch becomes a copy, and tensors at
such places get memory of their own from then on. A generator that keeps the last sample that it has
yielded is such a case, and so is a dataset that yields its samples again.

Modules: ``layout`` (what is learned, without memory), ``region`` (a batch's rows), ``memory`` (the
tensors of samples and batches), ``collating`` (torch's and WebDataset's).
"""

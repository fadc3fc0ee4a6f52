"""Images of user code that keep their encoded bytes until pixels are asked for.

**How it works.** Pillow opens a file lazily and decodes it in ``load()``. In a worker, the pixels
of a JPEG are then a ``DeferredCore`` in place of Pillow's own: the file's bytes and a list of
operations. PNG and WebP files have theirs decoded there, natively, in front of the list. Pillow's
methods that have a native operation return an image with one operation more; torchvision's and
timm's transforms call these methods, with parameters that they drew from the generators that they
always use. ``ToTensor`` (with the conversions behind it in a ``Compose``) and numpy arrays have the
native executor run the whole list at once, region of interest first.

**Why it is right.** The images are Pillow's own classes: only what ``Image.im`` holds differs, and
everything in Pillow that needs pixels reads that property, which puts real pixels in place first.
An operation is recorded only with arguments for which the native one is known to give Pillow's
pixels; with others, and with everything unknown, the image gets its pixels and Pillow goes on. A
core never changes, so that copies share it.

Modules: ``source`` (the bytes, decoded as seldom as possible), ``core`` (the operations),
``opening`` (which files), ``decoding`` (PNG and WebP), ``methods``, ``enhancing`` and
``functionals`` (what is recorded of Pillow and torchvision), ``composed/`` (lists of transforms),
``rows/`` (tensors that are made where their batch will have them),
``decoders/`` (of other libraries), ``patches`` (what is replaced, and checked before), ``guard``
(what happens to an error in a replacement), ``activity`` (in which threads), ``counts``, ``kept``
(from epoch to epoch), ``loading`` (from when to when), ``sample_source`` (a sample), ``pillow``
(names).
"""

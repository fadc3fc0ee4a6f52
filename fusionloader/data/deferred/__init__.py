"""Images of user code that keep their encoded bytes until pixels are needed.

**How it works.** Pillow opens a file lazily and decodes it in ``load()``. In a worker, ``load()``
gives the image a ``DeferredCore`` in place of Pillow's pixels: the file's bytes and a list of
operations. PNG and WebP files are decoded natively in ``load()``, and only the list is deferred.
Pillow's methods that have a native operation return an image with one operation more. The
transforms of torchvision and timm call these methods, with parameters drawn from their usual
generators. ``ToTensor`` (with the conversions behind it in a ``Compose``) and numpy arrays make the
native executor run the whole list at once, region of interest first.

**Why it is right.** The images are of Pillow's own classes, and differ only in what ``Image.im``
holds. All code in Pillow that needs pixels reads that property, which makes the pixels first. An
operation is recorded only with arguments for which the native one is known to give Pillow's pixels.
For all other calls the image gets its pixels, and Pillow does the operation. A core never changes,
so copies of an image share it.

Modules:
    source: the file's bytes, decoded as seldom as possible.
    core: the recorded operations.
    formats: which files are deferred.
    methods, enhancing, canvas, functionals: the recorded functions of Pillow and torchvision.
    image_processors: the image processors of transformers.
    image_stacks, image_stack_functions: tensors for them, and what is recorded of these.
    processor_programs: what image processors did, done again without their code.
    composed: lists of transforms.
    rows: tensors that are made at their place in the batch.
    collating: the collate functions of torch and WebDataset, in these rows.
    array_decoders: the decoders of OpenCV, torchvision and torchcodec.
    tensors: what torchvision's and torchcodec's return, with pixels that are made later.
    opening, unparsed: JPEG files that are read once, and parsed on request.
    patches: the replaced functions, checked before they are replaced.
    guard: how errors in a replacement are handled.
    activity, scope: in which threads, and how long, images are deferred.
    file_cache: pixels, bytes and entry indexes cached from epoch to epoch.
    counts: counters.
    kept: images that a dataset keeps for later samples.
    sample_source: a source of samples with deferred images.
    pillow: type names.
"""

"""A run of a DALI head, or of a pipeline, from its start to its results."""


def decode(head, encoded, windows):
    head.begin(encoded, windows)
    return head.finish()


def run(prebuilt, **inputs):
    prebuilt.start(**inputs)
    return prebuilt.outputs()

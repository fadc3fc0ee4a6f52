"""What decodes for the GPU worker: an interface, and the decoders that come with it.

``interface`` has what a decoder is given and what it gives back. ``decoder_head`` drives one, over
the recycled memory of ``buffer_pool``, and checks what it does. ``dali_decoder``,
``nvjpeg_decoder`` and ``torchvision_decoder`` are found by name in ``by_name``; the last two decode
whole images and leave window and resize to ``whole_images``. Only the decoders' own modules import
what they decode with.
"""

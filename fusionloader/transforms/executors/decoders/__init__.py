"""Decoders of the GPU worker: their interface, and those that come with FusionLoader.

``interface`` has a decoder's methods, commands and results. ``decoder_head`` calls a decoder with
memory that is reused, and checks its results. ``by_name`` makes ``dali_decoder``,
``nvjpeg_decoder`` and ``torchvision_decoder``; the last two decode whole images, and
``whole_images`` cuts the windows out of them.
Only the modules of decoders import the libraries that they decode with.
"""

from fake_cuda import fake_cuda, fake_library

__all__ = ["fake_cuda", "fake_library"]

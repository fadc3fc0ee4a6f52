# Stops where the C library is another one, as musl is in Alpine Linux.
include(CheckCXXSourceCompiles)
check_cxx_source_compiles("
#include <features.h>
#ifndef __GLIBC__
#error another C library
#endif
int main() {}" FUSIONLOADER_GLIBC)
if(NOT FUSIONLOADER_GLIBC)
  message(FATAL_ERROR
    "fusionloader: needs glibc, and this system has another C library (musl, as in Alpine Linux, is "
    "not supported, nor is it by torch).\n"
    "In containers take an image of Debian, Ubuntu or Fedora, such as python:3.12-slim.")
endif()

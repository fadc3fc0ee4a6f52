# The libraries that decoders need, of the system. What is missing is named with the command that helps.
include(CheckCXXSourceCompiles)
add_library(fusionloader_libraries INTERFACE)

# require(NAME LINKED PROBE DEBIAN FEDORA CONDA): what has to compile, and the packages that help.
function(require name linked probe debian fedora conda)
  string(MAKE_C_IDENTIFIER "FUSIONLOADER_HAS_${name}" found)
  set(CMAKE_REQUIRED_LIBRARIES ${linked})
  check_cxx_source_compiles("#include <cstddef>\n#include <cstdio>\n${probe}\nint main() {}" ${found})
  if(NOT ${found})
    unset(${found} CACHE)
    message(FATAL_ERROR
      "fusionloader: the header of ${name} was not found, or the library itself.\n"
      "Debian, Ubuntu: apt-get install ${debian}\n"
      "Fedora: dnf install ${fedora}    conda: conda install ${conda}\n"
      "elsewhere: set CPPFLAGS=-I... and LDFLAGS=-L...")
  endif()
  target_link_libraries(fusionloader_libraries INTERFACE ${linked})
endfunction()

require("libjpeg-turbo (jpeglib.h)" jpeg
  "#include <jpeglib.h>\nint x = JCS_EXT_RGBX;"
  "libjpeg62-turbo-dev (or libjpeg-turbo8-dev)" libjpeg-turbo-devel libjpeg-turbo)
require("libdeflate (libdeflate.h)" deflate
  "#include <libdeflate.h>\nauto x = libdeflate_zlib_decompress_ex;"
  libdeflate-dev libdeflate-devel libdeflate)
require("libwebp (webp/decode.h, webp/demux.h)" "webp;webpdemux"
  "#include <webp/decode.h>\n#include <webp/demux.h>\nauto x = WebPDemuxGetFrame;"
  libwebp-dev libwebp-devel libwebp)

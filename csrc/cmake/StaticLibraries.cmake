# The libraries that decoders need, of known releases, linked statically: for wheels, which find none
# on the machines that they are installed on. None of their symbols is seen outside the extension,
# where another package may have loaded its own.
include(ExternalProject)
add_library(fusionloader_libraries INTERFACE)
target_link_options(fusionloader_libraries INTERFACE -Wl,--exclude-libs,ALL)
set(prefix "${CMAKE_CURRENT_BINARY_DIR}/static")
file(MAKE_DIRECTORY "${prefix}/include")
target_include_directories(fusionloader_libraries SYSTEM INTERFACE "${prefix}/include")
set(settings
  -DCMAKE_INSTALL_PREFIX=${prefix} -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_C_VISIBILITY_PRESET=hidden
  -DCMAKE_C_COMPILER=${CMAKE_C_COMPILER} -DCMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER}
  -DCMAKE_POLICY_VERSION_MINIMUM=3.5)
foreach(name CMAKE_TOOLCHAIN_FILE CMAKE_SYSTEM_NAME CMAKE_SYSTEM_PROCESSOR CMAKE_AR CMAKE_RANLIB)
  if(${name})
    list(APPEND settings "-D${name}=${${name}}")
  endif()
endforeach()
set(debian https://deb.debian.org/debian/pool/main)

# static_library(NAME VERSION SHA256 UPSTREAM DEBIAN LICENSE ARCHIVES [setting...]): Debian keeps the
# same archive, for where upstream cannot be reached.
function(static_library name version digest upstream mirror license archives)
  list(TRANSFORM archives PREPEND "${prefix}/lib/lib")
  list(TRANSFORM archives APPEND ".a")
  ExternalProject_Add(${name}
    URL "${upstream}" "${mirror}"
    URL_HASH SHA256=${digest}
    DOWNLOAD_DIR "$ENV{FUSIONLOADER_DOWNLOADS}"
    DOWNLOAD_NAME ${name}-${version}.tar.gz
    DOWNLOAD_EXTRACT_TIMESTAMP ON
    PREFIX "${CMAKE_CURRENT_BINARY_DIR}/${name}"
    CMAKE_ARGS ${settings} ${ARGN}
    BUILD_BYPRODUCTS ${archives})
  add_dependencies(fusionloader_libraries ${name})
  target_link_libraries(fusionloader_libraries INTERFACE ${archives})
  # Their licenses ask to be where their code is.
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${name}/src/${name}/${license}"
    DESTINATION fusionloader/licenses RENAME ${name}.txt)
endfunction()

static_library(libjpeg-turbo 3.1.3 3a13a5ba767dc8264bc40b185e41368a80d5d5f945944d1dbaa4b2fb0099f4e5
  https://github.com/libjpeg-turbo/libjpeg-turbo/archive/refs/tags/3.1.3.tar.gz
  ${debian}/libj/libjpeg-turbo/libjpeg-turbo_3.1.3.orig.tar.gz LICENSE.md jpeg
  # Without its assembler libjpeg-turbo would be built for scalars, and say so in the log alone.
  -DREQUIRE_SIMD=ON -DENABLE_SHARED=OFF -DWITH_TURBOJPEG=OFF -DWITH_TOOLS=OFF -DWITH_TESTS=OFF)
static_library(libdeflate 1.23 1ab18349b9fb0ce8a0ca4116bded725be7dcbfa709e19f6f983d99df1fb8b25f
  https://github.com/ebiggers/libdeflate/archive/refs/tags/v1.23.tar.gz
  ${debian}/libd/libdeflate/libdeflate_1.23.orig.tar.gz COPYING deflate
  -DLIBDEFLATE_BUILD_SHARED_LIB=OFF -DLIBDEFLATE_BUILD_GZIP=OFF -DLIBDEFLATE_COMPRESSION_SUPPORT=OFF)
static_library(libwebp 1.6.0 e4ab7009bf0629fd11982d4c2aa83964cf244cffba7347ecd39019a9e38c4564
  https://storage.googleapis.com/downloads.webmproject.org/releases/webp/libwebp-1.6.0.tar.gz
  ${debian}/libw/libwebp/libwebp_1.6.0.orig.tar.gz COPYING "webpdemux;webp;sharpyuv"
  -DBUILD_SHARED_LIBS=OFF -DWEBP_BUILD_ANIM_UTILS=OFF -DWEBP_BUILD_CWEBP=OFF -DWEBP_BUILD_DWEBP=OFF
  -DWEBP_BUILD_GIF2WEBP=OFF -DWEBP_BUILD_IMG2WEBP=OFF -DWEBP_BUILD_VWEBP=OFF -DWEBP_BUILD_WEBPINFO=OFF
  -DWEBP_BUILD_LIBWEBPMUX=OFF -DWEBP_BUILD_WEBPMUX=OFF -DWEBP_BUILD_EXTRAS=OFF)

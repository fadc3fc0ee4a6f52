#pragma once
// The kernel's source, which is part of the extension: the same build made it and the builder whose
// programs it reads, so that they agree on the layout. (A file beside the extension could be of
// another version, after an update that was interrupted or an editable install built in part.)
// embed_source.py writes the definition, from kernel.cu and the headers that it includes.
#include <cstddef>

namespace fusionloader::device {

struct SourceFile {
  const char* name;  // as it is included
  const char* text;
};
extern const SourceFile source_files[];
extern const size_t source_count;

}  // namespace fusionloader::device

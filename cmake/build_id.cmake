# Writes OUTPUT, a C++ file with the build id: VERSION and a digest of the files named in SOURCES, a
# file with one path per line. Paths count relative to ROOT, so a copy of the tree has the same id.
file(STRINGS ${SOURCES} paths)
list(SORT paths)
set(digests "")
foreach(path IN LISTS paths)
  file(SHA256 ${path} digest)
  file(RELATIVE_PATH name ${ROOT} ${path})
  string(APPEND digests "${name} ${digest}\n")
endforeach()
string(SHA256 digest "${digests}")
string(SUBSTRING ${digest} 0 12 digest)
file(WRITE ${OUTPUT} "// Written by cmake/build_id.cmake.
#include \"base/build_id.h\"

namespace q7x2 {

std::string build_id() {
  return \"${VERSION}+${digest}\";
}

}  // namespace q7x2
")

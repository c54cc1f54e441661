#include "comm_hooks/compress/compressors.h"

#include <algorithm>

#include "base/error.h"

namespace q7x2 {

// One line per compressor.
#define Q7X2_COMPRESSORS(COMPRESSOR) \
  COMPRESSOR(codec)                  \
  COMPRESSOR(low_rank)               \
  COMPRESSOR(flat_low_rank)          \
  COMPRESSOR(cyclic_top_k)

#define Q7X2_DECLARE(name) CompressorKind name##_compressor();
Q7X2_COMPRESSORS(Q7X2_DECLARE)
#undef Q7X2_DECLARE

std::span<const CompressorKind> compressor_kinds() {
#define Q7X2_KIND(name) name##_compressor(),
  static const std::vector<CompressorKind> table{Q7X2_COMPRESSORS(Q7X2_KIND)};
#undef Q7X2_KIND
  return table;
}

const CompressorKind& find_compressor(const std::string& name) {
  const auto kinds = compressor_kinds();
  const auto found = std::ranges::find(kinds, name, &CompressorKind::name);
  if (found != kinds.end()) return *found;
  std::string names;
  for (const CompressorKind& kind : kinds) names += (names.empty() ? "" : ", ") + kind.name;
  throw Error(ErrorCode::kInvalidArgument,
              "expected a compressor, one of " + names + ", got '" + name + "'");
}

}  // namespace q7x2

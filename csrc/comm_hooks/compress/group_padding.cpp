#include "comm_hooks/compress/group_padding.h"

#include <algorithm>

namespace q7x2 {
namespace {

/// Signs have no scales, for any group size.
int64_t group_of(const ValueSpec& value) {
  return value.kind == ValueKind::kSign ? 1 : std::max<int64_t>(value.group, 1);
}

}  // namespace

int64_t padded_numel(const ValueSpec& value, int64_t numel) {
  const int64_t group = group_of(value);
  return (numel + group - 1) / group * group;
}

bool repeats_padding(const ValueSpec& value) {
  // A rotation mixes the elements of a group: zeros then get a share of the rounding error.
  return !value.hadamard && (value.kind == ValueKind::kOneBit || value.minmax);
}

void fill_padding(const ValueSpec& value, const at::Tensor& room, int64_t numel) {
  const int64_t end = room.numel();
  if (numel == end) return;
  if (!repeats_padding(value)) {
    room.narrow(0, numel, end - numel).zero_();
    return;
  }
  const int64_t first = numel / group_of(value) * group_of(value);
  for (int64_t at = numel; at < end;) {
    const int64_t count = std::min(at - first, end - at);
    room.narrow(0, at, count).copy_(room.narrow(0, first, count));
    at += count;
  }
}

}  // namespace q7x2

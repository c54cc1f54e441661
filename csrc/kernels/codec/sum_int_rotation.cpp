#include "kernels/codec/sum_int_rotation.h"

#include <algorithm>

#include "kernels/codec/random.h"
#include "kernels/codec/rotate.h"

namespace q7x2 {
namespace {

template <class Body>
void for_groups(const ValueSpec& spec, size_t count, Body body) {
  for (size_t begin = 0; begin < count; begin += spec.group) {
    body(begin, std::min<size_t>(spec.group, count - begin));
  }
}

}  // namespace

void rotate_groups(const ValueSpec& spec, float* values, size_t count, uint64_t shared_key) {
  for_groups(spec, count, [&](size_t begin, size_t length) {
    rotate(values + begin, length, group_stream(shared_key, begin));
  });
}

void rotate_groups_back(const ValueSpec& spec, float* values, size_t count, uint64_t shared_key) {
  for_groups(spec, count, [&](size_t begin, size_t length) {
    rotate_back(values + begin, length, group_stream(shared_key, begin), 1);
  });
}

}  // namespace q7x2

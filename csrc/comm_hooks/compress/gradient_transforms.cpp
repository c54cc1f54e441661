#include <array>

#include "base/error.h"
#include "comm_hooks/compress/gradient_transform.h"
#include "comm_hooks/compress/local_momentum.h"
#include "comm_hooks/compress/mean_momentum.h"

namespace q7x2 {
namespace {

template <typename S>
std::unique_ptr<GradientTransform> make(const TransformOptions& options, int ranks) {
  return std::make_unique<S>(options, ranks);
}

struct Entry {
  const char* name;
  std::unique_ptr<GradientTransform> (*make)(const TransformOptions& options, int ranks);
};

constexpr std::array kTransforms{
    Entry{"gradient", nullptr},
    Entry{"accumulated", make<AccumulatedMomentum>},
    Entry{"averaged", make<AveragedMomentum>},
    Entry{"lion", make<LionUpdate>},
    Entry{"global", make<GlobalMomentum>},
    Entry{"difference", make<DifferenceTransform>},
};

}  // namespace

std::unique_ptr<GradientTransform> make_gradient_transform(const TransformOptions& options,
                                                           int ranks) {
  std::string names;
  for (const Entry& entry : kTransforms) {
    if (options.name == entry.name) {
      return entry.make == nullptr ? nullptr : entry.make(options, ranks);
    }
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              "expected a transform, one of " + names + ", got '" + options.name + "'");
}

void blend(const TransformState& state, double old, double fresh) {
  at::Tensor next = state.next;
  at::mul_out(next, state.now, at::scalar_tensor(old, next.scalar_type()));
  next.add_(state.values, fresh);
}

}  // namespace q7x2

// SparseStaging: the way through host memory of a compressed call whose device selects what is
// sent. The tensor and its residual stay there.
//
//   the device   marks what is sent (kernels/codec/marking.h); the mask passes
//   the host     sees how many there are in each message
//   the device   takes them out; they pass. What is not sent stays as the residual
//   the host     runs the call: encodes what was gathered, sends, adds up, decodes
//   the device   gets a mask and numbers: of the results those that are not zero, and what codecs
//                have lost, which is added to the residual
//
// Where a message would hold more than what was selected, because it is no longer with all
// elements, or where numbers are so large that codecs keep no error of them, all tensors pass
// (executor/residence/whole_staging.h). So results and residuals have the bits that the host alone
// would give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/recycled.h"
#include "executor/residence/device_coder.h"
#include "executor/residence/host_passage.h"
#include "executor/residence/whole_staging.h"
#include "kernels/codec/gathered_elements.h"
#include "kernels/codec/marking.h"

namespace q7x2 {

/// Whether devices select for that codec, from elements of that type.
bool has_selection_for(const Codec& codec, DType dtype);
/// Whether a Plan encodes what this rank contributes, and sends nothing else.
bool selects_on_device(const Plan& plan, const Codec& codec, DType dtype);

class SparseStaging final : public HostPassage {
 public:
  /// Whether each message of the call holds what is gathered and no more.
  using Fits = std::function<bool(const GatheredElements&)>;

  /// Whether the input is one piece of memory, and the output, neither too long for marks.
  static bool takes(const CollectiveCall& call);

  /// Of a Plan that `selects_on_device`, and a call that it takes.
  SparseStaging(ResidentDevice device, const CollectiveCall& call, Fits fits);

  bool read() override;
  std::shared_ptr<const GatheredElements> redirect(CollectiveCall& call) override;
  bool write() override;

 private:
  enum class Step : uint8_t { kMark, kTake, kTaken };
  /// Of the device: what `mark` makes, and the tensor as fp32 if it has another type.
  struct Marked {
    std::shared_ptr<std::byte> memory;
    MarkCounts* counts = nullptr;
    Marks marks;
    const float* values = nullptr;
  };

  size_t count() const { return input_.bytes / element_size(call_.dtype); }
  float* errors() const;
  void mark();
  /// False: all must pass.
  bool take();
  /// Enqueues that `numbers` go to `to`, elements of `dtype`, or are added.
  void put(const std::byte* numbers, DType dtype, size_t count, std::byte* to, bool adds);

  const ResidentDevice device_;
  const CollectiveCall call_;  // as it was
  const Region input_;         // all regions
  const Region output_;
  const Fits fits_;
  Step step_ = Step::kMark;
  Marked marked_;
  std::shared_ptr<std::byte> mask_;   // pinned: counts, and the mask
  std::shared_ptr<std::byte> taken_;  // pinned: numbers
  std::shared_ptr<GatheredElements> gathered_;
  std::unique_ptr<WholeStaging> dense_;  // if all pass
  bool is_written_ = false;
  std::vector<std::shared_ptr<std::byte>> written_;  // pinned
  Recycled<std::byte> results_;
  Recycled<float> lost_;  // by the codec; empty: nothing ever is
};

}  // namespace q7x2

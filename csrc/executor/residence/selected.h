// Selected: the elements stay on a device, which selects what is sent.
//
//   the device   marks the elements that are sent (kernels/codec/marking.h); the mask is copied
//   the host     counts the elements of each message
//   the device   gathers them; they are copied. Elements that are not sent stay as the residual
//   the host     runs the call: encodes the gathered elements, sends, adds up, decodes
//   the device   gets a mask and numbers: the results that are not zero, and the errors of codecs,
//                which are added to the residual
//
// It degrades in three cases: a message contains all elements, because it would be no shorter with
// the selected ones alone; numbers are so large that codecs keep no error of them; the Plan sends
// something else. So results and residuals have the bits that the host alone would compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/recycled.h"
#include "executor/residence/residence.h"
#include "kernels/codec/gathered_elements.h"
#include "kernels/codec/marking.h"

namespace q7x2 {

/// Whether devices select for this codec, from elements of this type.
bool has_selection_for(const Codec& codec, DType dtype);
/// Whether a Plan encodes this rank's contribution, and sends nothing else.
bool selects_on_device(const Plan& plan, const Codec& codec, DType dtype);

class Selected final : public Residence {
 public:
  Selected(std::shared_ptr<InputLatch> inputs, ResidentDevice device);

  Next enter(const Run& run) override;
  Next leave(const Run& run) override;

 private:
  enum class Step : uint8_t { kMark, kTake, kTaken };
  /// In memory of the device: the result of `mark`, and the tensor as fp32 if it has another type.
  struct Marked {
    std::shared_ptr<std::byte> memory;
    MarkCounts* counts = nullptr;
    Marks marks;
    const float* values = nullptr;
  };

  size_t count(const Run& run) const { return input_.bytes / element_size(run.call.dtype); }
  /// Returns false if the input or the output is not contiguous, or is too long for marks.
  bool find_regions(const CollectiveCall& call);
  void mark(const Run& run);
  /// Returns false if all elements must be copied.
  bool take(const Run& run);
  /// From now on the call reads the gathered elements, and writes its results to host memory.
  void redirect(const Run& run);
  /// Enqueues that `numbers` are copied to `to`, elements of `dtype`, or added to it.
  void put(const std::byte* numbers, DType dtype, size_t count, std::byte* to, bool adds);

  Region input_;  // all regions, on the device, like the next two
  Region output_;
  float* errors_ = nullptr;  // null: the call keeps no errors
  Step step_ = Step::kMark;
  Marked marked_;
  std::shared_ptr<std::byte> mask_;   // pinned: counts, and the mask
  std::shared_ptr<std::byte> taken_;  // pinned: the gathered numbers
  std::shared_ptr<GatheredElements> gathered_;
  std::vector<std::shared_ptr<std::byte>> written_;  // pinned
  Recycled<std::byte> results_;
  Recycled<float> lost_;  // errors of the codec; empty: it has none
};

}  // namespace q7x2

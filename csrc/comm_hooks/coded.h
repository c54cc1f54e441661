// Gradients, or momenta, through codecs: quantised, top-k, one bit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm_hooks/hook.h"
#include "comm_hooks/schedule.h"
#include "plan/edge_coding.h"

namespace q7x2 {

/// What goes through the codec in the gradient's place.
enum class Momentum {
  kNone,
  /// u <- f u + g on each rank, and u is sent: the momentum of SGD. Where an element of it was sent
  /// it starts from zero again; where ranks of a host add up before they encode, and an element of
  /// any host was. Lin et al., "Deep gradient compression", 2018.
  kAccumulated,
  /// u <- f u + (1 - f) g on each rank, and u is sent. Bernstein et al., "signSGD", 2018.
  kAveraged,
  /// m <- f m + (1 - f) g, where m is what all ranks received last, and the sum becomes the next m.
  /// In full precision g is sent, and m follows. Tang et al., "1-bit Adam", 2021.
  kGlobal,
};

struct CodedHookOptions {
  struct Stage {
    uint64_t first_step = 0;
    std::string codec;  ///< see kernels/codec_spec.h
  };
  /// In order; the first begins at step 0.
  std::vector<Stage> stages;
  /// By parameter number: its gradient travels whole.
  std::vector<bool> whole;
  FullPrecision full_precision;
  bool error_feedback = true;
  Momentum momentum = Momentum::kNone;
  double momentum_factor = 0;
  /// The largest norm (L2) that a gradient may have on one rank, before it is divided by the number
  /// of ranks; 0: any.
  double clip_norm = 0;
  /// Codecs from which each gradient gets its own, so that their errors together are those of the
  /// stage's codec and their bytes the fewest; none: the stage's codec for all.
  std::vector<std::string> choices;
  /// Steps between two choices.
  uint64_t choose_every = 0;
  /// Over stock collectives, on any process group, and not q7x2's own.
  bool over_stock = false;
  EdgeWish edges = EdgeWish::kAuto;  ///< which messages of q7x2's own are compressed
  uint64_t seed = 0;
};

/// Throws Error(kInvalidArgument) for a codec that does not exist, cannot keep errors or cannot
/// travel over stock collectives.
std::unique_ptr<Hook> make_coded(const HookContext& context, CodedHookOptions options);

}  // namespace q7x2

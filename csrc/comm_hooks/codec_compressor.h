// Gradients, or momenta, through codecs: quantised, top-k, one bit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm_hooks/compressor.h"
#include "plan/edge_coding.h"

namespace q7x2 {

struct CodecOptions {
  struct Stage {
    uint64_t first_step = 0;
    std::string codec;  ///< see kernels/codec_spec.h
  };
  /// In order; the first begins at step 0.
  std::vector<Stage> stages;
  /// By parameter number: its gradient travels whole.
  std::vector<bool> whole;
  /// Groups that share a scale, and selections, lie within one parameter each: a layer of small
  /// gradients does not starve beside one of large gradients.
  bool per_parameter = true;
  /// Codecs beside the stage's, from which each gradient gets its own; none: the stage's for all.
  std::vector<std::string> choices;
  /// Steps between two choices.
  uint64_t choose_every = 1;
  /// What decides: see ChoiceRule.
  double critical_change = 0;
  /// Over stock collectives, on any process group, and not q7x2's own.
  bool over_stock = false;
  EdgeWish edges = EdgeWish::kAuto;  ///< which messages of q7x2's own are compressed
  uint64_t seed = 0;
};

/// `first_step`: from which on it compresses. Throws Error(kInvalidArgument) for a codec that does
/// not exist, cannot keep errors (with `error_feedback`) or cannot travel over stock collectives.
std::unique_ptr<Compressor> make_codec_compressor(const HookContext& context, CodecOptions options,
                                                  bool error_feedback, uint64_t first_step);

}  // namespace q7x2
